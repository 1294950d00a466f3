"""Hostile checkpoints and weights: code in every kind of opcode, containers and indexes that lie."""

import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from edited_checkpoints import edited, reshaped
from hostile_entries import CANARY, TRAIN, Entry, Make
from wrong_checkpoints import OPCODES as BOMBS
from wrong_checkpoints import WRONG, Evil, at

from leyden.trainer.runs import checkpoints

_TOUCH = f"touch {CANARY}".encode()
_SHORT = b"\x8c" + bytes([len(_TOUCH)]) + _TOUCH
_LONG = b"X" + struct.pack("<I", len(_TOUCH)) + _TOUCH
_OPCODES: Mapping[str, tuple[bytes, str]] = {
    # a pickle that calls os.system where it is loaded, and the name that is refused
    "GLOBAL": (b"cos\nsystem\n(S'" + _TOUCH + b"'\ntR.", "os.system"),
    "GLOBAL of posix": (b"cposix\nsystem\n(S'" + _TOUCH + b"'\ntR.", "posix.system"),
    "INST": (b"(S'" + _TOUCH + b"'\nios\nsystem\n.", "os.system"),
    "OBJ": (b"(cos\nsystem\nS'" + _TOUCH + b"'\no.", "os.system"),
    "STACK_GLOBAL": (b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + _SHORT + b"\x85R.", "posix.system"),
    "STACK_GLOBAL of the memo": (
        b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93" + _SHORT + b"\x85R.",
        "posix.system",
    ),
    "a memo overwritten": (
        b"\x80\x04\x8c\x05torchq\x000\x8c\x05posixq\x000\x8c\x06system\x94h\x00h\x01\x93" + _SHORT + b"\x85R.",
        "",
    ),
    "NEWOBJ": (b"\x80\x02csubprocess\nPopen\n(" + _LONG + b"t\x81.", "subprocess.Popen"),
    "BUILD": (
        b"ctorch.nn.modules.linear\nLinear\n)\x81}S'forward'\ncos\nsystem\nsb.",
        "torch.nn.modules.linear.Linear",
    ),
    "REDUCE of eval": (b'c__builtin__\neval\n(S\'__import__("os").system("touch canary")\'\ntR.', "eval"),
    "builtins.exec": (b'cbuiltins\nexec\n(S\'open("canary", "w")\'\ntR.', "exec"),
    "an attribute of an allowed module": (
        b"\x80\x04\x8c\x05torch\x8c\tos.system\x93" + _SHORT + b"\x85R.",
        "os.system",
    ),
    "torch.load in a pickle": (b"ctorch\nload\n(S'evil.pt'\ntR.", "torch.load"),
    "torch.hub.load": (b"ctorch.hub\nload\n(S'.'\nS'x'\ntR.", "torch.hub.load"),
    "EXT1": (b"\x80\x02\x82\x01.", ""),
    "PERSID": (b"Pos.system\n.", ""),
    "a frame without end": (b"\x80\x04\x95" + b"\xff" * 8 + b".", ""),
    "a text of gigabytes": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.", ""),
    "a number of megabytes": (b"\x80\x04\x8b" + struct.pack("<I", 1 << 30) + b"x.", ""),
    "100,000 lists in each other": (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", ""),
    "a list of itself": (b"\x80\x04]\x94h\x00a.", ""),
    "nothing on the stack": (b"\x80\x04R.", ""),
    "no STOP": (b"\x80\x04}", ""),
}


def _replaced(make: Callable[[Path], None]) -> Make:
    """The only checkpoint of the run is a hostile file."""

    def replace(here: Path) -> None:
        folder = here / "run" / "checkpoints"
        (folder / "last.ckpt").unlink()
        newest, *others = checkpoints.saved_checkpoints(here / "run")
        for path in (newest, *others):
            path.unlink()
        make(newest)
        (here / "run" / "summary.json").unlink()

    return replace


def container(opcodes: bytes, path: Path) -> None:
    """A zip as torch.save writes it around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", opcodes)
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")


def _changed(change: Callable[[dict[str, Any]], None]) -> Make:
    def make(here: Path) -> None:
        folder = here / "run" / "checkpoints"
        (folder / "last.ckpt").unlink()
        (here / "run" / "summary.json").unlink()
        newest, *others = checkpoints.saved_checkpoints(here / "run")
        for path in others:
            path.unlink()
        content = torch.load(newest, weights_only=True)
        change(content)
        torch.save(content, newest)

    return make


def _legacy(path: Path) -> None:
    torch.save(Evil(path.parents[2] / CANARY), path, _use_new_zipfile_serialization=False)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in {
            "sys_info": pickle.dumps({}),
            "pickle": _OPCODES["GLOBAL"][0],
            "storages": b"x",
            "tensors": b"x",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _nested(path: Path) -> None:
    container(_OPCODES["GLOBAL"][0], path)
    inner = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"format": 1, "model": inner}))
        archive.writestr("x/data/0", inner)


def _script(path: Path) -> None:
    container(_OPCODES["GLOBAL"][0], path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/constants.pkl", _OPCODES["GLOBAL"][0])
        archive.writestr("x/code/__torch__.py", "import os\nos.system('touch canary')\n")


def _twice(path: Path) -> None:
    container(pickle.dumps({"format": 1, "model": {}}), path)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the name is there already
        archive.writestr("x/data.pkl", _OPCODES["GLOBAL"][0])


def _outside(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"../../../{CANARY}", b"x")
        archive.writestr("x/data.pkl", pickle.dumps({"format": 1}))


def _many_entries(path: Path) -> None:
    """A list of a million entries, all of them the same one."""
    container(pickle.dumps({"format": 1}), path)
    data = path.read_bytes()
    first, end = data.find(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    entry = data[first : data.find(b"PK\x01\x02", first + 4)]
    size = len(entry) * 1_000_000
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, size, first, 0)
    path.write_bytes(data[:first] + entry * 1_000_000 + tail)
    assert end


def _huge_entry(path: Path) -> None:
    container(pickle.dumps({"format": 1}), path)
    data = bytearray(path.read_bytes())
    entry = data.find(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = struct.pack("<II", 3 << 30, 3 << 30)
    path.write_bytes(data)


def _bomb(path: Path) -> None:
    edited(path, lambda name, data: bytes(1 << 28), zipfile.ZIP_DEFLATED)


_OPCODES = {**_OPCODES, **BOMBS}


def _second_end(path: Path) -> None:
    """700,000 entries, and an end record inside of the end record."""
    container(pickle.dumps({"format": 1}), path)
    data = path.read_bytes()
    first = data.find(b"PK\x01\x02")
    entry = data[first : data.find(b"PK\x01\x02", first + 4)]
    tail = struct.pack("<4s4HL4sH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(entry) * 700_000, b"PK\x05\x06", 0)
    path.write_bytes(data[:first] + entry * 700_000 + tail)


_CONTAINERS: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "legacy pickle": (_legacy, "not a zip file"),
    "legacy tar": (_tar, "step="),
    "a checkpoint in a checkpoint": (_nested, "step="),
    "TorchScript": (_script, "os.system"),
    "an entry twice": (_twice, "a name twice"),
    "names outside": (_outside, "step="),
    "a second end record": (_second_end, "list of entries"),
    "60 MB of nothing, no zip": (
        lambda path: _void(path.write_bytes(b"\x80\x02" + b"N" * 60_000_000)),
        "not a zip file",
    ),
    "a million entries": (_many_entries, "list of entries"),
    "3 GB in 500 bytes": (_huge_entry, "declare"),
    "256 MB of zeros, compressed": (_bomb, "compressed"),
    "a shape of 4 TB": (lambda path: _void(edited(path, reshaped(10**12, 1))), "step="),
    "a stride of 0": (lambda path: _void(edited(path, reshaped(10**12, 0))), "declare"),
    "cut off": (lambda path: _void(path.write_bytes(b"PK\x03\x04" + bytes(100))), "step="),
    "empty": (lambda path: path.touch(), "step="),
    "a FIFO": (os.mkfifo, "checkpoint"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "checkpoint"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "checkpoint"),
}


def _void(_: object) -> None:
    """For makers whose value nobody needs."""


def _sparse(content: dict[str, Any]) -> None:
    name = next(iter(content["model"]))
    content["model"][name] = content["model"][name].to_sparse()


def _repeated(levels: int) -> Any:
    value: Any = [1]
    for _ in range(levels):
        value = [value, value]
    return value


_INSIDE: Mapping[str, Callable[[dict[str, Any]], None]] = {
    **{name: change for name, (change, _) in WRONG.items()},
    "a sparse weight": _sparse,
    "a weight without values": lambda content: content["model"].update(
        {name: value.to("meta") for name, value in content["model"].items()}
    ),
    "a state that is none": at("optimizer", "state", value=[1]),
    "a state of numbers": at("optimizer", "state", value={0: 1}),
    "groups that are none": at("optimizer", "param_groups", value=[1]),
    "no group": at("optimizer", "param_groups", value=[]),
    "schedules that are none": at("schedules", value=[1, 2, 3]),
    "a schedule's method": at("schedules", value=[5]),
    "random numbers that are none": at("random", value=[{}]),
    "random numbers of another size": at("random", value=[{"torch": torch.zeros(3), "python": [1], "numpy": []}]),
    "sessions that are none": at("sessions", value=[{}]),
    "sessions of another type": at("sessions", value=[5]),
    "metrics of metrics": at("epoch_metrics", value={"a": 5}),
    "objects of metrics": at("epoch_metric_objects", value={"a": {"state": {}, "updates": 1}}),
    "threads": at("threads", value=["many"]),
    "data": at("data", value={"a": 1}),
    "a callback's state": at("callbacks", value={"checkpoint": 5, "progress": 5, "early_stopping": 5}),
    "2^40 values in 40 lists": at("metrics", value={"a": _repeated(40)}),
    "shards without their index": at("shards", value=2),
    "a billion shards": at("shards", value=10**9),
    "fewer than no shards": at("shards", value=-1),
    "a billion servers": at("servers", value=10**9),
    "fewer than no servers": at("servers", value=-1),
}

_ENTRY = {"dtype": "float32", "shape": [2], "pieces": [{"worker": 0, "offset": [0], "shape": [2]}]}
_INDEXES: Mapping[str, str] = {
    "deep": "[" * 100_000,
    "five million lists": "[" + "[]," * 5_000_000 + "[]]",
    "a list": '{"workers": 1, "tensors": []}',
    "no entry": '{"workers": 1, "tensors": {"model/a": 1}}',
    "an unknown dtype": json.dumps({"workers": 1, "tensors": {"model/a": {**_ENTRY, "dtype": "load"}}}),
    "a huge shape": json.dumps({"workers": 1, "tensors": {"model/a": {**_ENTRY, "shape": [1 << 50]}}}),
    "a negative shape": json.dumps({"workers": 1, "tensors": {"model/a": {**_ENTRY, "shape": [-1]}}}),
    "a worker outside": json.dumps(
        {"workers": 1, "tensors": {"model/a": {**_ENTRY, "pieces": [{"worker": "../x", "offset": [0], "shape": [2]}]}}}
    ),
    "a parameter that is none": json.dumps({"workers": 1, "tensors": {"optimizer/__class__/x": _ENTRY}}),
    "a slice that no file has": json.dumps({"workers": 1, "tensors": {"model/a": _ENTRY}}),
}


def _with_index(text: str, shard: bytes | None = None) -> Make:
    def make(here: Path) -> None:
        _changed(at("shards", value=1))(here)
        for path in checkpoints.saved_checkpoints(here / "run"):
            checkpoints.index_path(path).write_text(text)
            own = checkpoints.shard_path(path, 0)
            if shard is None:
                torch.save({"pieces": {}, "own": {}}, own)
            else:
                container(shard, own)

    return make


def checkpoints_with_code() -> Iterator[Entry]:
    for name, (opcodes, says) in _OPCODES.items():
        make = _replaced(lambda path, opcodes=opcodes: container(opcodes, path))
        yield Entry("checkpoint", name, ("eval", "run"), ["step=", says], make, harmless="eval")
    for name, (write, says) in _CONTAINERS.items():
        yield Entry("checkpoint", name, ("eval", "run"), [says], _replaced(write), harmless="eval")
    resume = ("resume", "run", "trainer.max_steps=32")
    yield Entry(
        "checkpoint",
        "code, resume",
        resume,
        ["posix.system"],
        _replaced(lambda path: container(_OPCODES["STACK_GLOBAL"][0], path)),
        harmless="resume",
    )


def checkpoints_that_lie() -> Iterator[Entry]:
    for name, change in _INSIDE.items():
        # NaN: the weights that were asked for, which is a failure and no mistake
        codes = (1, 2) if name in ("NaN", "infinite") else (0, 2) if name in _HARMLESS_INSIDE else (2,)
        yield Entry(
            "checkpoint's content",
            name,
            ("eval", "run"),
            ["step="] if codes != (0, 2) else [],
            _changed(change),
            codes,
            "eval",
        )
    for name, text in _INDEXES.items():
        yield Entry("checkpoint's index", name, ("eval", "run"), ["step="], _with_index(text), harmless="eval")
    index = json.dumps({"workers": 1, "tensors": {"model/a": _ENTRY}})
    yield Entry(
        "checkpoint's index",
        "code in a worker's file",
        ("eval", "run"),
        ["os.system"],
        _with_index(index, _OPCODES["GLOBAL"][0]),
        harmless="eval",
    )
    yield Entry(
        "checkpoint's index",
        "a list in a worker's file",
        ("eval", "run"),
        ["shard0000"],
        _with_index(index, pickle.dumps([1])),
        harmless="eval",
    )


_HARMLESS_INSIDE = ("threads", "data", "a callback's state", "2^40 values in 40 lists", "objects of metrics")
"""What an evaluation may do without, or what has no meaning."""


def _weights(name: str, data: bytes) -> Make:
    return lambda here: _void((here / name).write_bytes(data))


def _safetensors(header: bytes, declared: int | None = None, values: bytes = bytes(16)) -> bytes:
    return (len(header) if declared is None else declared).to_bytes(8, "little") + header + values


_SAFETENSORS: Mapping[str, bytes] = {
    "a longer header": _safetensors(b"{}", 1 << 62),
    "a header of 90 MB": _safetensors(b"{}", 90 << 20),
    "deep": _safetensors(b'{"a":' * 50_000),
    "no JSON": _safetensors(b"touch canary"),
    "offsets outside": _safetensors(b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'),
    "negative offsets": _safetensors(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}'),
    "overlapping": _safetensors(
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    ),
    "a shape that overflows": _safetensors(
        b'{"w":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}'
    ),
    "an unknown dtype": _safetensors(b'{"w":{"dtype":"os.system","shape":[4],"data_offsets":[0,16]}}'),
    "empty": b"",
    "a pickle": _OPCODES["GLOBAL"][0],
}


def weights() -> Iterator[Entry]:
    for name, data in _SAFETENSORS.items():
        words = (*TRAIN, "init_from=w.safetensors")
        yield Entry("weights", name, words, ["w.safetensors"], _weights("w.safetensors", data))
    for name in ("GLOBAL", "STACK_GLOBAL of the memo", "INST"):
        make = lambda here, name=name: container(_OPCODES[name][0], here / "w.ckpt")  # noqa: E731
        yield Entry("weights", f"code by {name}", (*TRAIN, "init_from=w.ckpt"), ["w.ckpt", _OPCODES[name][1]], make)
    yield Entry(
        "weights",
        "shards of no position",
        (*TRAIN, "init_from=w.ckpt"),
        ["w.ckpt"],
        lambda here: torch.save({"format": 1, "model": {}, "shards": 2}, here / "w.ckpt"),
    )
    yield Entry(
        "weights",
        "a model of texts",
        (*TRAIN, "init_from=w.ckpt"),
        ["w.ckpt"],
        lambda here: torch.save({"format": 1, "model": {"model.0.weight": "x"}}, here / "w.ckpt"),
    )
    yield Entry(
        "weights",
        "a FIFO",
        (*TRAIN, "init_from=w.safetensors"),
        ["w.safetensors"],
        lambda here: os.mkfifo(here / "w.safetensors"),
    )
    yield Entry(
        "weights",
        "a device",
        (*TRAIN, "init_from=w.ckpt"),
        ["w.ckpt"],
        lambda here: (here / "w.ckpt").symlink_to("/dev/zero"),
    )
