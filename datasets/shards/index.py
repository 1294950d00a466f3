"""The index of shards: `index.json` and an array of samples for each split, both checked before they are used."""

import os
import stat
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..limits import Limits, read_regular

INDEX = "index.json"
VERSION: Literal[2] = 2
"""Of the index: 1 had no names."""
UNFINISHED = ".preparing"
"""Folder inside of one that `leyden prepare` has not finished."""
SAMPLE = np.dtype(
    [
        ("offset", "<u8"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("label", "<u4"),
        ("height", "<u2"),
        ("width", "<u2"),
        ("name", "<u8"),
    ]
)
"""An image: first byte in its shard, bytes, CRC-32, class; height and width of raw pixels, else 0; hash of the name it
had in the source, 0 if that has no names."""
MOST_CLASSES = 10_000_000
_MOST_JSON = Limits(file_bytes=1 << 26)
_ROWS = 1 << 16
"""Rows checked at a time: an array of all would take memory."""

_Number = Annotated[int, Field(ge=0, lt=1 << 62)]
_Name = Annotated[str, Field(pattern=r"^[^./\x00-\x1f][^/\x00-\x1f]*(/[^./\x00-\x1f][^/\x00-\x1f]*)*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ShardFile(_Strict):
    """A file of images. `mtime_ns` is that of a tar indexed in place, which may be written again; None: prepared."""

    name: _Name
    bytes: _Number
    samples: _Number
    mtime_ns: int | None = None
    left_out: list[str] = []
    """Images of the source that could not be read."""


class SplitIndex(_Strict):
    """The images of a split, shard after shard."""

    file: _Name
    crc32: _Number
    samples: _Number
    shards: list[ShardFile]


class Settings(_Strict):
    """What the bytes of prepared shards follow from."""

    format: Literal["jpeg", "raw"]
    size: int | None
    quality: int
    shard_size: int
    source: str
    """Digest of the source's class, keys and numbers of samples."""


class ShardSet(_Strict):
    """`index.json`."""

    leyden_shards: Literal[2] = VERSION
    checksums: bool
    """Whether the samples' CRC-32 are known."""
    raw: bool
    classes: Annotated[int, Field(ge=1, le=MOST_CLASSES)]
    label_sets: list[list[_Number]] | None = None
    """Sets of classes, whose numbers the samples have as labels; None: a sample has one class."""
    class_names: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    settings: Settings | None = None
    """None: tars of others, indexed in place."""
    json_label: str | None = None
    """Of those: the key of the class in .json."""
    suffixes: list[str] = []
    """Of those: the suffixes that counted as images."""
    left_out: dict[str, _Number] = {}
    """Of those: files in the tars that are neither image nor class, by suffix."""
    splits: Mapping[Literal["train", "val", "test"], SplitIndex]

    @property
    def labels(self) -> int:
        """Labels of samples are below it."""
        return self.classes if self.label_sets is None else len(self.label_sets)

    @model_validator(mode="after")
    def _sets_have_classes(self) -> Self:
        if any(number >= self.classes for each in self.label_sets or () for number in each):
            raise ValueError(f"label_sets have a class above {self.classes - 1}")
        return self


def read_index(folder: Path) -> ShardSet | None:
    """The index of a folder; None if it has none.

    Raises:
        ValueError: damaged, or not this version's.
    """
    path = folder / INDEX
    if not path.exists():
        return None
    try:
        return ShardSet.model_validate_json(read_regular(str(path), _MOST_JSON))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["loc"] == ("leyden_shards",):
            text = "leyden prepare into a new folder writes this version's; of tars of others, remove it"
            raise ValueError(f"{path} is of another version of Leyden: {text}") from None
        raise ValueError(f"{path} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def read_rows(
    folder: Path, root: Path, found: ShardSet, split: SplitIndex, only: Sequence[ShardFile] | None = None
) -> NDArray[np.void]:
    """The samples of a split, memory-mapped, after every size, offset, count and label was compared with the files.

    Args:
        folder: of the index.
        root: of the shards.
        only: the shards whose files are looked at; None: all.

    Raises:
        ValueError: they do not agree; the message names the file and where.
        OSError: a file is missing.
    """
    path = folder / split.file
    if split.samples != sum(shard.samples for shard in split.shards):
        raise ValueError(f"{folder / INDEX} is damaged: {split.samples} samples are not those of its shards")
    rows = _mapped(path, split.samples)
    if _checksum(rows) != split.crc32:
        raise ValueError(f"{path} is damaged: its checksum is wrong")
    first = 0
    for shard in split.shards:
        if only is None or shard in only:
            check_file(root, shard)
        for start in range(first, first + shard.samples, _ROWS):
            _check_rows(path, rows[start : min(start + _ROWS, first + shard.samples)], start, shard, found)
        first += shard.samples
    return rows


def check_file(root: Path, shard: ShardFile) -> None:
    """Raise ValueError if a shard is no regular file of the size in its index, OSError if it is missing."""
    path = root / shard.name
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if about.st_size < shard.bytes:
        raise ValueError(f"{path} is cut off at byte {about.st_size:,}: its index says {shard.bytes:,}")
    if about.st_size > shard.bytes:
        raise ValueError(f"{path} has {about.st_size:,} bytes, its index says {shard.bytes:,}")


def _mapped(path: Path, samples: int) -> NDArray[np.void]:
    """The array of a number of samples in a .npy file, without reading it.

    Its header is compared with the only one that it may have, and never parsed: NumPy's would evaluate it, and
    unpickle arrays of objects.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path} is not a regular file")
    header = _header(samples)
    with path.open("rb") as file:
        found = file.read(len(header))
    if found != header or about.st_size != len(header) + samples * SAMPLE.itemsize:
        raise ValueError(f"{path} is no index of {samples:,} samples, or damaged")
    # as a plain array: a memmap takes twice as long for each element
    return np.memmap(path, SAMPLE, "r", len(header), (samples,)).view(np.ndarray) if samples else np.empty(0, SAMPLE)


def _header(samples: int) -> bytes:
    """The beginning of a .npy file, format 1.0, the same with every NumPy."""
    fields = ", ".join(f"('{name}', '{SAMPLE[name].str}')" for name in SAMPLE.names or ())
    text = f"{{'descr': [{fields}], 'fortran_order': False, 'shape': ({samples},), }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _check_rows(path: Path, rows: NDArray[np.void], first: int, shard: ShardFile, found: ShardSet) -> None:
    """Raise ValueError if samples lie outside of their shard, or have classes or sizes that cannot be."""
    size = rows["size"].astype(np.int64)
    offset = rows["offset"].astype(np.uint64)
    # compared, not added: a sum could wrap around
    wrong = (offset > np.uint64(shard.bytes)) | (size > shard.bytes - offset.clip(max=shard.bytes).astype(np.int64))
    _refuse_first(path, rows, first, wrong, f"lies outside of {shard.name}, which has {shard.bytes:,} bytes")
    _refuse_first(path, rows, first, rows["label"] >= found.labels, f"has a class above {found.labels - 1}")
    if found.raw:
        pixels = rows["height"].astype(np.int64) * rows["width"]
        _refuse_first(path, rows, first, (pixels == 0) | (pixels * 3 != size), "has other bytes than pixels")


def _refuse_first(path: Path, rows: NDArray[np.void], first: int, wrong: NDArray[np.bool_], text: str) -> None:
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"{path} is damaged: sample {first + at}, at byte {int(rows['offset'][at]):,}, {text}")


def _checksum(rows: NDArray[np.void]) -> int:
    total = 0
    for start in range(0, len(rows), _ROWS):
        total = zlib.crc32(rows[start : start + _ROWS].tobytes(), total)
    return total


def write_rows(path: Path, parts: Sequence[NDArray[np.void]]) -> int:
    """Write the samples of a split. Returns their checksum."""
    rows = np.concatenate([np.empty(0, SAMPLE), *parts])
    with new_file(path) as file:
        file.write(_header(len(rows)))
        file.write(rows.tobytes())
    return _checksum(rows)


def write_index(folder: Path, found: ShardSet) -> None:
    """Write `index.json`, after all else: its presence says that the set is complete."""
    with new_file(folder / INDEX) as file:
        file.write(found.model_dump_json(indent=1).encode() + b"\n")


class NewFile:
    """A file that appears whole or not at all: written beside, flushed, renamed. A link at its name is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beside = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            self.beside.unlink()
        self._stream = open(self.beside, "xb", buffering=1 << 20)  # noqa: SIM115  # closed by sync or discard

    def write(self, data: Any) -> None:
        with self._named():
            self._stream.write(data)

    def sync(self) -> None:
        """Close it when its bytes are on the disk; it is still beside."""
        with self._named(), self._stream as stream:
            stream.flush()
            os.fsync(stream.fileno())

    def rename(self) -> None:
        os.replace(self.beside, self.path)

    def discard(self) -> None:
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self.beside.unlink()

    @contextmanager
    def _named(self) -> Generator[None, None, None]:
        """Errors have the file's name."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error


@contextmanager
def new_file(path: Path) -> Generator[NewFile, None, None]:
    """A file that appears at the end of the context, unless that is an exception."""
    file = NewFile(path)
    try:
        yield file
        file.sync()
        file.rename()
    finally:
        file.discard()
