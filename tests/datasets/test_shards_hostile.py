"""Hostile and damaged shards: refused by name, nothing is executed, taken out of its place or read beyond limits."""

import json
import os
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limited_process import within_limits
from shard_examples import jpeg, prepared
from tar_shards import samples, tar

from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.index import INDEX, SAMPLE, write_rows

CANARY = "canary"


class Touch:
    """Creates the canary when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {CANARY}",)


Change = Callable[[Path], object]


def index(change: Callable[[dict[str, Any]], object]) -> Change:
    def make(out: Path) -> None:
        values = json.loads((out / INDEX).read_text())
        change(values)
        (out / INDEX).write_text(json.dumps(values))

    return make


def shard(**values: Any) -> Change:
    return index(lambda found: found["splits"]["train"]["shards"][0].update(values))


def text(content: str | bytes) -> Change:
    return lambda out: (out / INDEX).write_bytes(content.encode() if isinstance(content, str) else content)


def rows(change: Callable[[np.ndarray[Any, Any]], object]) -> Change:
    """A changed array of samples, whose checksum is right: somebody has made it on purpose."""

    def make(out: Path) -> None:

        found = np.load(out / "index-train.npy")
        change(found)
        crc = write_rows(out / "index-train.npy", [found])
        index(lambda values: values["splits"]["train"].update(crc32=crc))(out)

    return make


def cell(name: str, value: int) -> Change:
    return rows(lambda found: found[name].__setitem__(1, value))


def npy(header: dict[str, Any]) -> Change:
    def make(out: Path) -> None:
        with (out / "index-train.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(1000))

    return make


def pickled(out: Path) -> None:
    with (out / "index-train.npy").open("wb") as file:
        np.save(file, np.array([Touch()], dtype=object), allow_pickle=True)


def replaced(name: str, data: bytes) -> Change:
    return lambda out: (out / name).write_bytes(data)


def special(name: str, place: Callable[[Path], object]) -> Change:
    def make(out: Path) -> None:
        (out / name).unlink()
        place(out / name)

    return make


def truncated(name: str, size: int) -> Change:
    return lambda out: os.truncate(out / name, size)


def _endless(values: dict[str, Any]) -> None:
    split = values["splits"]["train"]
    split["samples"], split["shards"] = 1 << 61, [{**split["shards"][0], "samples": 1 << 61}]


_ROWS = [(name, SAMPLE[name].str) for name in SAMPLE.names or ()]
PREPARED: Mapping[str, tuple[Change, str]] = {
    "an index of nothing": (text(""), "index.json is damaged"),
    "an index that is no JSON": (text("cos\nsystem\n(S'touch canary'\ntR."), "index.json is damaged"),
    "an index of brackets": (text("[" * 1_000_000), "index.json is damaged"),
    "an index of a long number": (text('{"classes": ' + "9" * 1_000_000 + "}"), "index.json is damaged"),
    "another version": (index(lambda v: v.update(leyden_shards=1)), "another version of Leyden"),
    "an unknown key": (index(lambda v: v.update(_target_="os.system")), "_target_"),
    "many classes": (index(lambda v: v.update(classes=1 << 40)), "classes"),
    "a name outside": (shard(name="../../canary.tar"), "name"),
    "an absolute name": (shard(name="/etc/passwd"), "name"),
    "a pipe": (shard(name="pipe:touch canary"), "pipe:touch canary"),
    "a hidden name": (shard(name=".ssh"), "name"),
    "a control character": (shard(name="x\x1b]0;x\x07.tar"), "name"),
    "a missing shard": (shard(name="train-000009.tar"), "train-000009.tar"),
    "negative bytes": (shard(bytes=-1), "bytes"),
    "more bytes": (shard(bytes=1 << 40), "train-000000.tar is cut off at byte"),
    "fewer bytes": (shard(bytes=512), "train-000000.tar has"),
    "more samples": (shard(samples=1000), "samples"),
    "samples without end": (index(_endless), "dataset.limits.members"),
    "a cut tar": (truncated("train-000001.tar", 700), "train-000001.tar is cut off at byte 700"),
    "a shard that is a FIFO": (special("train-000000.tar", os.mkfifo), "not a regular file"),
    "a shard that is endless": (special("train-000000.tar", lambda p: p.symlink_to("/dev/zero")), "not a regular file"),
    "an index that is a FIFO": (special(INDEX, os.mkfifo), "not a regular file"),
    "an array that is a FIFO": (special("index-train.npy", os.mkfifo), "not a regular file"),
    "an array that is endless": (special("index-train.npy", lambda p: p.symlink_to("/dev/zero")), "not a regular file"),
    "an array of objects": (pickled, "index-train.npy is no index"),
    "a pickle": (replaced("index-train.npy", pickle.dumps(Touch())), "index-train.npy is no index"),
    "a zip": (replaced("index-train.npy", b"PK\x03\x04" + bytes(100)), "index-train.npy is no index"),
    "an empty array": (replaced("index-train.npy", b""), "index-train.npy is no index"),
    "a header of a gigabyte": (
        replaced("index-train.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b"{" * 1000),
        "index-train.npy is no index",
    ),
    "a header of brackets": (
        replaced("index-train.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
        "index-train.npy is no index",
    ),
    "a header that calls": (
        replaced("index-train.npy", b"\x93NUMPY\x01\x00\x40\x00__import__('os').system('touch canary')".ljust(74)),
        "index-train.npy is no index",
    ),
    "samples that are not there": (
        npy({"descr": _ROWS, "fortran_order": False, "shape": (1 << 40,)}),
        "index-train.npy is no index",
    ),
    "a size that wraps around": (
        npy({"descr": _ROWS, "fortran_order": False, "shape": (1 << 62, 1 << 62)}),
        "index-train.npy is no index",
    ),
    "another type": (npy({"descr": "<f8", "fortran_order": False, "shape": (5,)}), "index-train.npy is no index"),
    "a cut array": (truncated("index-train.npy", 200), "index-train.npy is no index"),
    "a flipped bit": (
        lambda out: (out / "index-train.npy").write_bytes(
            (d := bytearray((out / "index-train.npy").read_bytes()))[:-3] + bytes([d[-3] ^ 1]) + d[-2:]
        ),
        "its checksum is wrong",
    ),
    "an offset behind the end": (cell("offset", 1 << 40), "lies outside of train-000000.tar"),
    "an offset that wraps around": (cell("offset", (1 << 64) - 1), "lies outside of train-000000.tar"),
    "a size beyond the end": (cell("size", (1 << 32) - 1), "lies outside of train-000000.tar"),
    "a class that is none": (cell("label", 2), "has a class above 1"),
}
RAW: Mapping[str, tuple[Change, str]] = {
    "more pixels than bytes": (cell("height", 65535), "has other bytes than pixels"),
    "no pixels": (cell("width", 0), "has other bytes than pixels"),
}
SAMPLES: Mapping[str, tuple[Change, str]] = {
    "another place": (cell("offset", 5), "train-000000.tar at byte 5: damaged"),
    "another size": (cell("size", 3), "damaged, its bytes are not those of the index"),
}


def _links(out: Path) -> None:
    with tarfile.open(out / "0.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            for suffix in ("jpg", "cls"):
                member = tarfile.TarInfo(f"0.{suffix}")
                member.type, member.linkname = kind, "/etc/passwd"
                archive.addfile(member)


def _negative(out: Path) -> None:
    block = bytearray(tarfile.TarInfo("0.jpg").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    (out / "0.tar").write_bytes(bytes(block) + bytes(1024))


def _lying(out: Path) -> None:
    header = tarfile.TarInfo("0.jpg")
    header.size = 1 << 50
    (out / "0.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))


def _long_header(out: Path) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    (out / "0.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
    os.truncate(out / "0.tar", 2 << 30)


def members(*found: tuple[str, bytes]) -> Change:
    return lambda out: tar(out / "0.tar", list(found))


IMAGE = ("0.jpg", jpeg(0, 9, 9))
FOREIGN: Mapping[str, tuple[Change, str]] = {
    "links and devices": (_links, "no images"),
    "names outside": (members(("../../canary.jpg", IMAGE[1]), ("../../canary.cls", b"0")), "no images"),
    "absolute names": (members(("/tmp/canary.jpg", IMAGE[1]), ("/tmp/canary.cls", b"0")), "no images"),
    "a pickled class": (members(IMAGE, ("0.pyd", pickle.dumps(Touch()))), "neither .cls nor .json"),
    "a pickle as class": (members(IMAGE, ("0.cls", pickle.dumps(Touch())[:30])), "no whole number"),
    "a class of a gigabyte": (members(IMAGE, ("0.cls", b"1" * 10_000)), "more than 32"),
    "a negative class": (members(IMAGE, ("0.cls", b"-1")), "no whole number"),
    "a class of 2^31": (members(IMAGE, ("0.cls", b"2147483648")), "no whole number"),
    "a class of words": (members(IMAGE, ("0.cls", b"__import__")), "no whole number"),
    "JSON of brackets": (members(IMAGE, ("0.json", b"[" * 100_000)), "has no class under"),
    "JSON of 10 MB": (members(IMAGE, ("0.json", b" " * 10_000_000)), "more than 1,048,576"),
    "JSON without a class": (members(IMAGE, ("0.json", b'{"label": null}')), "has no class under"),
    "JSON of a long number": (members(IMAGE, ("0.json", b'{"label": ' + b"9" * 5000 + b"}")), "0.tar"),
    "numbers and names": (
        members(*samples(1), ("x.jpg", IMAGE[1]), ("x.json", b'{"label": "cat"}')),
        "some classes are numbers and some are names",
    ),
    "no image": (members(("0.txt", b"x"), ("0.cls", b"0")), "no images"),
    "a negative size": (_negative, "0.tar"),
    "a lying size": (_lying, "0.tar"),
    "a header of a gigabyte": (_long_header, "0.tar"),
    "a cut tar": (lambda out: os.truncate(tar(out / "0.tar", samples(1, 2)), 700), "0.tar"),
    "no tar": (replaced("0.tar", b"train/cat" + bytes(3000)), "0.tar"),
    "a FIFO": (lambda out: os.mkfifo(out / "0.tar"), "0.tar"),
    "endless": (lambda out: (out / "0.tar").symlink_to("/dev/zero"), "0.tar"),
}


def refused(root: Path) -> str:
    """The message, without a traceback of anything but what a data set may raise."""
    with pytest.raises((OSError, ValueError)) as caught:
        Shards("train", root)
    return str(caught.value)


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    return here


def canaries(here: Path) -> list[Path]:
    return [*here.rglob(f"{CANARY}*"), *here.parent.glob(f"{CANARY}*")]


@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_set_that_is_none(here: Path, name: str) -> None:
    change, says = PREPARED[name]
    change(prepared(here))
    assert says in refused(here / "shards")
    assert not canaries(here)


@pytest.mark.parametrize("name", RAW)
def test_raw_pixels_that_are_none(here: Path, name: str) -> None:
    change, says = RAW[name]
    change(prepared(here, format="raw"))
    assert says in refused(here / "shards")


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_that_are_none(here: Path, name: str) -> None:
    change, says = SAMPLES[name]
    change(prepared(here))
    data = Shards("train", here / "shards", 8)
    with pytest.raises(ValueError, match=says):
        data[1]
    assert data[0][0].shape == data[2][0].shape == (3, 8, 8)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_set_that_is_none(here: Path, name: str) -> None:
    change, says = FOREIGN[name]
    (here / "set").mkdir()
    change(here / "set")
    assert says in refused(here / "set")
    assert not canaries(here)
    assert not list(here.rglob(INDEX)), "no index of what is damaged"


def test_what_is_beside_image_and_class_is_never_read(here: Path) -> None:
    extra = [
        ("1.pyd", pickle.dumps(Touch())),
        ("1.pth", pickle.dumps(Touch())),
        ("1.npy", b"\x93NUMPY"),
        ("1.py", b"1/0"),
    ]
    tar(here / "set" / "0.tar", [*samples(1), *extra, *samples(2)])
    assert [Shards("train", here / "set", 8)[i][1] for i in range(2)] == [1, 2]
    assert not canaries(here)


REFUSED = """
for root in {roots!r}:
    before = os.times()
    try:
        Shards("train", root)
        raise SystemExit("read " + root)
    except (ValueError, OSError) as error:
        print(error)
"""


@pytest.mark.slow
def test_all_of_them_take_neither_memory_nor_time(here: Path) -> None:
    """All in one process, which may take a second of CPU and 512 MB."""
    roots = []
    for number, (change, _) in enumerate((*PREPARED.values(), *FOREIGN.values())):
        if number < len(PREPARED):
            out = prepared(here / str(number))
        else:
            out = here / str(number)
            out.mkdir()
        change(out)
        roots.append(str(out))
    told = within_limits(REFUSED.format(roots=roots), "from leyden.datasets.shards.dataset import Shards")
    assert len(told.splitlines()) >= len(roots)
    assert not canaries(here)


def test_an_unreadable_sample_counts_as_one(here: Path) -> None:
    """Through the loader: `dataset.max_bad_samples` is what decides."""
    from leyden.trainer.data.splits import Reader, plain_sample

    out = prepared(here)
    cell("offset", 5)(out)
    data: Any = Shards("train", out, 8)
    reader = Reader(data, plain_sample, replace_bad=True)
    read, problems = reader.__getitems__([(0, 0), (1, 0), (2, 0)])
    assert len(read) == 3
    assert len(problems) == 1
    assert "train-000000.tar at byte 5: damaged" in problems[0]
