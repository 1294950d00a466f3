"""Random input at every door: whatever it is, it is read or refused by the documented error, and nothing is executed.

`LEYDEN_FUZZ_SECONDS=600 pytest -n0 -m slow tests/campaign/test_fuzzing.py -s` takes that long for each property.
"""

import io
import json
import pickle
import socket
import struct
import tarfile
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fuzzing import check, examples, mutated, only
from hostile_peer import CODECS, LINES
from hypothesis import example, given
from hypothesis import strategies as st
from image_bombs import encoded

from leyden.datasets.decode import decode
from leyden.datasets.files import open_files
from leyden.datasets.limits import Limits
from leyden.trainer.base import limited_yaml
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.handshake import AuthenticationError, Connector, Listener
from leyden.trainer.base.untrusted_file import DamagedFile
from leyden.trainer.compose.composer import Composer, parse_overrides
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.checkpoints.pickle_code import refuse_code
from leyden.trainer.core.checkpoints.shard_index import read_index
from leyden.trainer.core.communication import plain_values
from leyden.trainer.launch.channel import MessageChannel
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.frozen import read_values
from leyden.trainer.runs.lease_record import lease_of
from leyden.trainer.runs.sessions import read_recorded
from leyden.trainer.runs.summary import read_summary
from leyden.trainer.strategies.param_server import protocol

pytestmark = pytest.mark.slow

ANTLR_S = 20.0
"""CPU time of an override: the parser of Hydra's grammar learns from each, and is slow until it has."""
EDITS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 64), st.binary(max_size=64)), max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([10**400, -1, 1 << 63, "0001-01-01T00:00:00+23:59", "2026-01-01T00:00:00+00:00", "\x1b]0;x\x07"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def untouched(here: Path) -> None:
    assert not list(here.rglob("canary*"))


# overrides

TOKENS = st.sampled_from(
    [
        *"=+~@,:.[]{}()'\"\\$ \n\t",
        "model",
        "dataset",
        "hydra.run.dir",
        "optimizer.lr",
        "model.hidden",
        "seed",
        "mlp",
        "null",
        "range(1,10)",
        "choice(a,b)",
        "interval(0,1)",
        "glob(*)",
        "sort(1,2)",
        "shuffle(1,2)",
        "int(",
        "tag(",
        "extend_list(",
        "${",
        "${oc.env:HOME}",
        "${model}",
        "_target_",
        "os.system",
        "touch canary",
        "1e400",
        "nan",
        "???",
        "é",
        "\udcff",
        "0x",
        "callbacks.checkpoint",
        "=1",
        "trainer.max_steps=1",
    ]
)
OVERRIDES = st.lists(TOKENS, min_size=1, max_size=12).map("".join) | st.text(max_size=40)


def test_an_override_is_parsed_or_refused(here: Path) -> None:
    @examples(400)
    @given(OVERRIDES)
    def overrides(text: str) -> None:
        with only("overrides", ConfigError, cpu_s=ANTLR_S):
            parse_overrides([text])

    check(overrides)
    untouched(here)


VALUES = st.recursive(
    st.sampled_from(
        [
            "1",
            "-1",
            "1.5",
            "null",
            "true",
            "nan",
            "1e400",
            "a",
            "'a b'",
            "${seed}",
            "${oc.env:HOME}",
            "???",
            "${hydra:job.name}",
            "os.system",
            "9" * 400,
            "'${model}'",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(inner, min_size=1, max_size=2).map(
            lambda items: (
                "{" + ",".join(f"{key}:{item}" for key, item in zip(["_target_", "b"], items, strict=False)) + "}"
            )
        )
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "seed",
        "batch_size",
        "model",
        "model.hidden",
        "model._target_",
        "optimizer.lr",
        "trainer",
        "trainer.max_steps",
        "hydra.run.dir",
        "hydra.job.name",
        "+model.x",
        "~model",
        "dataset",
        "callbacks",
        "+callbacks.x",
        "logger",
        "strategy",
        "topology",
        "topology.nodes",
        "topology.slurm.partition",
        "tags",
        "python_path",
        "init_from",
        "schedule",
        "augment",
        "experiment",
        "+x",
        "composition",
        "processes",
    ]
)


def test_a_composition_is_read_or_refused(here: Path) -> None:
    @examples(25)
    @given(st.lists(st.builds(lambda key, value: f"{key}={value}", KEYS, VALUES), min_size=1, max_size=3))
    @example([f"dataset={{b:{'9' * 400}}}"])  # a text too long for the name of a file
    def compositions(overrides: list[str]) -> None:
        with only("compositions", ConfigError, cpu_s=ANTLR_S):
            composer = Composer()
            composer.validate_run(composer.compose_with_hydra(overrides), overrides)

    check(compositions)
    untouched(here)


# YAML

PIECES = st.sampled_from(
    [
        "a",
        "b: ",
        "- ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&x ",
        "*x",
        "<<: ",
        "!!int ",
        "!!python/name:os.system ",
        "'",
        '"',
        "|\n",
        ">",
        "? ",
        "---\n",
        "...\n",
        "%TAG ! x\n",
        "1:1",
        "0x1f",
        "1e5",
        "2001-99-99",
        "~",
        "#",
        "\t",
        "\x00",
        "=",
        "!!set ",
        "!!binary ",
        "!!omap ",
        "!!timestamp ",
        ".inf",
        "é",
    ]
)


def test_a_text_of_yaml_is_read_or_refused() -> None:
    @examples(700)
    @given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
    def texts(text: str) -> None:
        with only("texts", yaml.YAMLError):
            limited_yaml.load(text)
        with only("texts", yaml.YAMLError):
            limited_yaml.compose(text)

    check(texts)


# checkpoints


@cache
def _checkpoint() -> bytes:
    content = {
        "format": 1,
        "model": {"w": torch.arange(4.0), "b": torch.zeros(2, 2, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"m": torch.ones(4)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "position": {"epoch": 0, "step": 1, "step_in_epoch": 1, "samples": 8},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _repacked(edits: list[tuple[int, int, bytes]], name: str = "data.pkl") -> bytes:
    """The checkpoint with another entry, its checksum right."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_checkpoint())) as whole, zipfile.ZipFile(buffer, "w") as archive:
        for entry in whole.infolist():
            data = whole.read(entry)
            archive.writestr(entry.filename, mutated(data, edits) if entry.filename.endswith(name) else data)
    return buffer.getvalue()


def test_a_checkpoint_is_read_or_refused(here: Path) -> None:
    path = here / "step=00000001.ckpt"

    @examples(400)
    @given(EDITS, st.sampled_from(["", "data.pkl", "byteorder", "version", "data/0"]))
    def files(edits: list[tuple[int, int, bytes]], entry: str) -> None:
        path.write_bytes(_repacked(edits, entry) if entry else mutated(_checkpoint(), edits))
        with only("files", checkpoint_io.DamagedCheckpoint):
            checkpoint_io.read(path)

    check(files)
    untouched(here)


class Inert:
    """What every name of a pickle is here: it may be called, built and changed, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> "Inert":
        return self

    def __setstate__(self, state: object) -> None:
        pass

    def append(self, _: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass


class Recorder(pickle.Unpickler):
    """Python's own unpickler, which only records the names that it is asked for."""

    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data))
        self.names: list[str] = []

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        self.names.append(f"{module_name}.{global_name}")
        return Inert


def _text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


OPCODES = st.lists(
    st.sampled_from(
        [
            *(bytes([opcode]) for opcode in b"0123(.)]}NR\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94abdelsotuQ"),
            _text("posix"),
            _text("system"),
            _text("torch"),
            _text("x"),
            b"cos\nsystem\n",
            b"(S'x'\nios\nsystem\n",
            b"h\x00",
            b"h\x01",
            b"h\x02",
            b"q\x00",
            b"q\x01",
            b"q\x02",
            b"p0\n",
            b"g0\n",
            b"r\x00\x00\x00\x00",
            b"j\x00\x00\x00\x00",
            b"K\x01",
            b"S'os'\n",
            b"Vsystem\n",
            b"X\x02\x00\x00\x00os",
            b"T\x02\x00\x00\x00os",
            b"U\x02os",
            b"\x95" + bytes(8),
        ]
    ),
    max_size=24,
).map(b"".join)


def test_no_pickle_that_asks_for_a_name_is_let_through() -> None:
    @examples(1000)
    @given(OPCODES | st.binary(max_size=60), st.booleans())
    # the text between the two names was taken from the stack again
    @example(_text("posix") + _text("system") + _text("x") + b"0\x93.", True)
    # put into the memo, overwritten there
    @example(
        _text("torch") + b"q\x000" + _text("posix") + b"q\x000" + _text("system") + b"h\x00" + b"0h\x00\x93.", True
    )
    def pickles(opcodes: bytes, framed: bool) -> None:
        data = (b"\x80\x04" if framed else b"") + opcodes
        recorder = Recorder(data)
        with suppress(Exception):
            recorder.load()
        with only("pickles", ValueError, LookupError):
            refuse_code(data, len(data))
            assert not recorder.names  # none of these is a checkpoint's

    check(pickles)


# messages


def _received(codec: Any, data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        channel = MessageChannel(ours, codec)
        messages = channel.receive()
        assert not messages or not channel.error
        assert all(type(message) in codec._types.values() for message in messages)


MESSAGES = st.builds(
    lambda kind, fields: json.dumps({"type": kind, "sent_at": 1.0, **fields}).encode() + b"\n",
    st.sampled_from(sorted({name for codec in CODECS.values() for name in codec._types})),
    st.dictionaries(
        st.sampled_from(
            [
                "number",
                "rank",
                "node",
                "status",
                "epoch",
                "step",
                "log",
                "metrics",
                "snapshot",
                "reason",
                "save",
                "processes",
                "code",
                "text",
                "users_mistake",
                "verb",
                "port",
                "checkpoint",
                "exits",
                "failed",
                "repeated",
                "sent_at",
                "type",
                "trial",
                "partitions",
            ]
        ),
        JSON,
        max_size=6,
    ),
)


@pytest.mark.parametrize("reader", CODECS)
def test_a_message_is_taken_or_closes_its_connection(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_NODELAY", socket.SO_REUSEADDR)
    monkeypatch.setattr(socket, "IPPROTO_TCP", socket.SOL_SOCKET)
    lines = st.sampled_from([line for line in LINES.values() if len(line) < 4096])
    name = f"lines of {reader}"

    @examples(300)
    @given(MESSAGES | st.builds(mutated, lines | MESSAGES, EDITS) | st.binary(max_size=80))
    def messages(data: bytes) -> None:
        with only(name):
            _received(CODECS[reader], data[:4096] + b"\n")

    check(messages, name)


def test_a_header_of_a_server_is_decoded_or_refused() -> None:
    @examples(500)
    @given(st.lists(st.integers(0, 24) | st.floats(), min_size=16, max_size=16), st.booleans())
    def headers(numbers: list[float], whole: bool) -> None:
        values = [float(int(abs(n)) % 30) if whole and abs(n) < 1e9 else float(n) for n in numbers]
        with only("headers", protocol.ProtocolError):
            protocol.decode(torch.tensor(values, dtype=torch.float64), protocol.Request.__args__)

    check(headers)


def test_plain_values_are_decoded_or_refused() -> None:
    tensors = st.builds(
        lambda dtype, shape, data: {"__tensor__": dtype, "shape": shape, "data": data},
        st.sampled_from(["float32", "load", "bool", "complex64", "qint8", ""]) | JSON,
        st.lists(st.integers(-2, 1 << 64), max_size=3) | JSON,
        st.sampled_from(["", "AAAA", "AAAAAA==", "x"]) | JSON,
    )

    @examples(600)
    @given((JSON | tensors).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
    @example(b'{"__tensor__": "float32", "shape": [], "data": null}')
    @example(b'{"__tensor__": "float32", "shape": []}')
    @example(b"[" * 100_000)
    def values(data: bytes) -> None:
        with only("values", ValueError):
            plain_values.decode(data)

    check(values)


def test_a_proof_is_only_that_of_the_secret() -> None:
    secret = bytes(32)

    @examples(300)
    @given(st.binary(max_size=80), st.binary(max_size=80))
    def proofs(hello: bytes, answer: bytes) -> None:
        listener = Listener(secret, "a")
        with only("proofs", AuthenticationError):
            listener.answer(hello)
            listener.verify(answer)
            raise RuntimeError("taken")
        with only("proofs", AuthenticationError):
            Connector(secret, "a").proof(answer)
            raise RuntimeError("taken")

    check(proofs)


# files of run folders


def test_files_of_a_run_folder_are_read_or_named(here: Path) -> None:
    sessions = st.fixed_dictionaries(
        {"started_at": JSON, "steps": JSON, "samples": JSON, "train_seconds": JSON}, optional={"seconds": JSON}
    )

    @examples(250)
    @given(
        st.dictionaries(st.sampled_from(["status", "error", "steps", "metrics", "samples_per_second"]), JSON),
        JSON,
        st.lists(sessions | JSON, max_size=3),
        EDITS,
    )
    @example(
        {},
        None,
        [{"started_at": "2026-01-01T00:00:00+00:00", "steps": 1, "samples": 1, "train_seconds": 1.0, "seconds": 5}],
        [],
    )
    @example(
        {},
        None,
        [
            {"started_at": at, "steps": 1, "samples": 1, "train_seconds": 1.0}
            for at in ("2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00")
        ],
        [],
    )
    def files(summary: dict[str, Any], other: Any, records: list[Any], edits: list[tuple[int, int, bytes]]) -> None:
        whole = json.dumps({**summary, "sessions": records}).encode()
        for name, content in {
            "summary.json": whole,
            "progress.json": json.dumps({"session": other}).encode(),
            "agent.json": json.dumps(other).encode(),
        }.items():
            (here / name).write_bytes(mutated(content, edits))
        with only("run files", DamagedFile):
            read_recorded(read_summary(here), here / "progress.json")
        with only("run files"):
            lease_of(here)

    check(files, "run files")


def test_a_frozen_config_is_read_or_named(here: Path) -> None:
    @examples(200)
    @given(JSON, JSON, st.lists(PIECES, max_size=20).map("".join))
    def configs(values: Any, changed: Any, text: str) -> None:
        (here / "config.yaml").write_text(text or json.dumps(values), errors="surrogateescape")
        (here / "resume.yaml").write_text(json.dumps([{"changed": changed}]))
        with only("configs", DamagedFile):
            read_values(here)

    check(configs)


def test_an_index_is_read_or_named(here: Path) -> None:
    main = here / "step=00000001.ckpt"
    torch.save({"pieces": {}, "own": {}}, checkpoints.shard_path(main, 0))
    pieces = st.fixed_dictionaries({"worker": JSON, "offset": JSON, "shape": JSON}) | JSON
    entries = (
        st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "pieces": st.lists(pieces, max_size=2) | JSON}) | JSON
    )

    @examples(250)
    @given(
        JSON | st.just(1),
        st.dictionaries(st.sampled_from(["model/a", "optimizer/0/m", "optimizer/x/m"]), entries) | JSON,
        EDITS,
    )
    def indexes(workers: Any, tensors: Any, edits: list[tuple[int, int, bytes]]) -> None:
        content = json.dumps({"workers": workers, "tensors": tensors}).encode()
        checkpoints.index_path(main).write_bytes(mutated(content, edits))
        with only("indexes", checkpoint_io.DamagedCheckpoint):
            read_index(main, 1)

    check(indexes)


# data sets


@cache
def _archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("train/cat/1.jpg", "train/dog/2.jpg", "../x.jpg"):
                archive.writestr(name, encoded())
    else:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in ("train/cat/1.jpg", "train/dog/" + "x" * 120 + ".jpg", "é.jpg"):
                member = tarfile.TarInfo(name)
                member.size = len(encoded())
                archive.addfile(member, io.BytesIO(encoded()))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_read_or_refused(here: Path, kind: str) -> None:
    path, name = here / f"set.{kind}", f"archives of {kind}"
    fields = st.tuples(
        st.integers(0, 1 << 14), st.just(4), st.integers(0, 1 << 32).map(lambda n: struct.pack("<Q", n)[:4])
    )

    @examples(300)
    @given(EDITS, st.lists(fields, max_size=3))
    def archives(edits: list[tuple[int, int, bytes]], sizes: list[tuple[int, int, bytes]]) -> None:
        path.write_bytes(mutated(_archive(kind), [*sizes, *edits]))
        with only(name, OSError, ValueError):
            files = open_files(path, lambda found: found.endswith("jpg"), Limits(members=10_000, file_bytes=1 << 22))
            for index in range(len(files.names)):
                with suppress(OSError, ValueError):
                    files.read(index)

    check(archives, name)
    untouched(here)


def test_an_image_is_decoded_or_refused() -> None:
    whole = st.sampled_from(
        [
            encoded("JPEG"),
            encoded("JPEG", progressive=True),
            encoded("PNG"),
            encoded("WEBP"),
            encoded("GIF"),
            encoded("BMP"),
        ]
    )

    @examples(500)
    @given(st.builds(mutated, whole, EDITS))
    def images(data: bytes) -> None:
        with only("images", ValueError):
            decode(data, "x", limits=Limits(pixels=1 << 22))

    check(images)
