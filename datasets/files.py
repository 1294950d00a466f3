"""Files by index: in a directory, or inside a .zip or .tar, read in place."""

import json
import os
import stat
import struct
import tarfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from .file_lists import LARGE, FileStates, Table, kept, read_kept, shared, write_kept
from .limits import DEFAULTS, Limits, read_regular
from .listing.class_folders import split_of
from .listing.identity import size_of
from .listing.unread import Counted, Unread
from .tar_members import inside, is_hidden, tar_members
from .zip_entries import zip_entries

_RULES = 3
"""Number of the rules by which files are listed: a list kept by others is not used."""
_DEFLATED = zipfile.ZIP_DEFLATED
_MOST = 1 << 62  # sizes of 64 bits without a sign would not fit into an array
_ENCRYPTED = 0x1  # of a zip member's flags
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., lengths of the name and of the extra field
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


_opening = Lock()
"""Of an archive by the first of several threads that read it."""


class Files(Protocol):
    """Files sorted by name, and their contents."""

    names: Sequence[str]
    """Paths below the root, with slashes: `train/cat/1.jpg`."""

    def path(self, index: int) -> str:
        """Path of a file for messages: the root and its name."""
        ...

    def read(self, index: int) -> bytes:
        """The whole content. Raises OSError or ValueError, with the file's path."""
        ...

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of some files; -1 if one does not exist."""
        ...

    def start(self, index: int, most: int) -> bytes:
        """The first `most` bytes at most. Raises as `read`, but for damage behind them."""
        ...


class Names(Sequence[str]):
    """Strings in one block of bytes.

    Why not a list: a million Python strings take some 100 MB in each reader process, as reference counting copies the
    memory shared by a fork.
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._block = b"".join(encoded)

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The block, and where each name ends."""
        return np.frombuffer(self._block, np.uint8), self._ends

    @classmethod
    def of_arrays(cls, block: NDArray[np.uint8], ends: NDArray[np.int64]) -> "Names":
        names = cls(())
        names._block, names._ends = block.tobytes(), ends
        return names

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._block[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")


def open_files(
    root: Path, wanted: Callable[[str], bool], limits: Limits = DEFAULTS, nested: bool = False
) -> "Directory | Archive":
    """The files below a directory, or inside a .zip or uncompressed .tar, whose names are `wanted`.

    Hidden files and folders (names that begin with a dot, `__MACOSX`, `@eaDir`) are left out; so are, in archives,
    links and names outside the archive. If all files of an archive are in one top folder of three levels or more
    (`photos/train/cat/1.jpg`, but not `train/cat/1.jpg`), that folder is removed from their names.

    What another dataset of this process has listed is not listed again unless something has changed.

    Args:
        nested: an archive is a .tar of tars, each of which is a folder of its name (`cat.tar`: `cat/1.jpg`).

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: neither a directory nor an archive with random access, or beyond `limits`.
    """
    key = (os.path.abspath(root), root, wanted, limits, nested)
    return shared(key, lambda: _listed(root, wanted, limits, nested))


def _listed(root: Path, wanted: Callable[[str], bool], limits: Limits, nested: bool) -> "Directory | Archive":
    if root.is_dir():
        return Directory(root, wanted, limits)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; expected a directory, a .zip or a .tar")
    if not root.is_file():
        raise ValueError(f"{root} is not a regular file; expected a directory, a .zip or a .tar")
    with root.open("rb") as file:
        start = file.read(8)
    for magic, tool in _COMPRESSED.items():
        if start.startswith(magic):
            raise ValueError(f"{root} is compressed as a whole, without random access to its files: {tool} it first")
    snapshot = FileStates()
    snapshot.note(root, root.stat())
    place = kept(
        snapshot, root, wanted.__module__, wanted.__qualname__, _RULES, limits, *(["nested"] if nested else [])
    )
    known = read_kept(place, _KEPT)
    if known is not None:
        return Archive(root, known, snapshot, limits)
    counted = Counted(wanted)
    try:
        members = _members_of(root, nested)(root, counted, limits)
    except (zipfile.BadZipFile, NotImplementedError, struct.error, tarfile.TarError) as error:
        # not implemented: a version of the format that does not exist
        raise ValueError(f"{root} is not a .zip or .tar, or damaged: {error}") from error
    table = _table(members, counted.others)
    if len(members) >= LARGE:
        write_kept(place, table)
    return Archive(root, table, snapshot, limits)


class Directory:
    """Files below a directory; links are followed.

    Attributes:
        top: the top folder that is removed from all names: none.
        unread: the other files.
    """

    top = ""

    def __init__(self, root: Path, wanted: Callable[[str], bool], limits: Limits) -> None:
        self.root = root
        self.limits = limits
        self.snapshot = FileStates()
        counted = Counted(wanted)
        self.names: Sequence[str] = Names(sorted(_Walk(counted, limits, self.snapshot).names(root)))
        self.unread: Unread = counted.others

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])

    def read(self, index: int) -> bytes:
        return read_regular(self.path(index), self.limits)

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.fromiter((size_of(self.path(index)) for index in indices.tolist()), np.int64, len(indices))

    def start(self, index: int, most: int) -> bytes:
        return read_regular(self.path(index), self.limits, most)


# A member's offset (in a zip: of its local header), its bytes in the archive, its bytes when decompressed, its
# compression (-1: a tar's member, without a local header), and its checksum.
_Member = tuple[int, int, int, int, int]
_KEPT = ("members", "top", "block", "ends", "unread")


def _table(members: Mapping[str, _Member], unread: Unread) -> Table:
    """What an archive's list consists of: numbers of its members, their top folder, their names, and other files."""
    names = sorted(members)
    top = _top_folder(names)
    block, ends = Names(name[len(top) :] for name in names).arrays
    rows = np.array([members[name] for name in names], dtype=np.int64).reshape(-1, 5)
    others = json.dumps([[*key, count] for key, count in unread.items()]).encode()
    return {
        "members": rows,
        "top": np.frombuffer(os.fsencode(top), np.uint8),
        "block": block,
        "ends": ends,
        "unread": np.frombuffer(others, np.uint8),
    }


class Archive:
    """Files inside a .zip or .tar.

    The archive is opened at the first read, and its handle is not pickled. Reads pass their offset (pread), so that
    forked processes can share one handle without a common position.

    Attributes:
        top: the top folder, with its slash, that is removed from all names; "": none.
        unread: the other files, in their folders as the archive has them.
    """

    def __init__(self, root: Path, table: Table, snapshot: FileStates, limits: Limits) -> None:
        self.root = root
        self.limits = limits
        self.snapshot = snapshot
        self._members: NDArray[np.int64] = table["members"]
        self.top = os.fsdecode(table["top"].tobytes())
        self.names: Sequence[str] = Names.of_arrays(table["block"], table["ends"])
        self.unread: Unread = {(folder, suffix): n for folder, suffix, n in json.loads(table["unread"].tobytes())}
        self._handle: int | None = None

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.top + self.names[index])

    def read(self, index: int) -> bytes:
        _, _, size, method, checksum = self._members[index].tolist()
        path, data = self.path(index), self._packed(index)
        if method < 0:
            return data
        # one byte more than the header says, to see that there are more: never all that the data decompresses to
        data = _inflated(data, size + 1, path) if method == _DEFLATED else data
        if len(data) > size:
            raise ValueError(f"{path}: damaged in the archive, more bytes than its header says")
        if len(data) != size or zlib.crc32(data) != checksum:
            raise ValueError(f"{path}: damaged in the archive, its checksum is wrong")
        return data

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._members[indices, 2]

    def start(self, index: int, most: int) -> bytes:
        data = self._packed(index, most)
        return _inflated(data, most, self.path(index)) if self._members[index, 3] == _DEFLATED else data

    def _packed(self, index: int, most: int = _MOST) -> bytes:
        """A member's bytes as the archive has them, the first `most` at most."""
        start, packed, size, method, _ = self._members[index].tolist()
        path = self.path(index)
        self.limits.check_bytes(max(packed, size), f"{path} (at byte {start:,} of the archive)")
        wanted = min(packed, most)
        try:
            handle = self._open()
            if method >= 0:
                start += _LOCAL_HEADER.size + self._skipped(handle, start)
            data = os.pread(handle, wanted, start)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if len(data) != wanted:
            raise ValueError(f"{path}: the archive ends before this file does")
        return data

    def _skipped(self, handle: int, start: int) -> int:
        """Bytes of name and extra field, which a zip repeats before the data."""
        header = os.pread(handle, _LOCAL_HEADER.size, start)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise ValueError("the archive's list of files does not match its content")
        _, name, extra = _LOCAL_HEADER.unpack(header)
        return name + extra

    def _open(self) -> int:
        with _opening:
            if self._handle is None:
                self._handle = os.open(self.root, os.O_RDONLY)
                weakref.finalize(self, os.close, self._handle)
            return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}


def _inflated(data: bytes, most: int, path: str) -> bytes:
    """The first `most` bytes of deflated data."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"{path}: damaged in the archive: {error}") from error


class _Walk:
    """The files below a folder; links are followed, but a folder linked into itself is not entered again.

    Args:
        wanted: whether a file of this path counts.
        snapshot: takes up all folders.

    Raises:
        ValueError: beyond the limits; links to links reach 10^9 paths with thirty folders.
    """

    def __init__(self, wanted: Callable[[str], bool], limits: Limits, snapshot: FileStates) -> None:
        self._wanted = wanted
        self._limits = limits
        self._snapshot = snapshot
        self._entries = 0
        self._visits: Counter[tuple[int, int]] = Counter()

    def names(self, root: Path, prefix: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
        about = root.stat()
        self._snapshot.note(root, about)
        here = (about.st_dev, about.st_ino)
        if here in above:
            return
        self._visits[here] += 1
        if self._visits[here] > self._limits.links:
            raise ValueError(f"{root}: more paths lead to this folder than dataset.limits.links={self._limits.links}")
        if len(above) > self._limits.depth:
            raise ValueError(f"{root}: folders deeper than dataset.limits.depth={self._limits.depth}")
        with os.scandir(root) as entries:
            for entry in entries:
                self._entries += 1
                self._limits.check_members(self._entries, str(root))
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    yield from self.names(Path(entry.path), f"{prefix}{entry.name}/", (*above, here))
                elif self._wanted(name := prefix + entry.name):
                    yield name


def _zip_members(root: Path, wanted: Callable[[str], bool], limits: Limits) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    limits.check_members(zip_entries(root, limits.members), str(root))
    with zipfile.ZipFile(root) as archive:
        for info in archive.infolist():
            name = inside(info.filename)
            is_folder = info.filename.endswith("/")  # is_dir() of Python 3.11 raises for an entry without a name
            if is_folder or stat.S_ISLNK(info.external_attr >> 16) or name is None or not wanted(name):
                continue
            if info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{root}/{name} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, _DEFLATED):
                raise ValueError(
                    f"{root}/{name} is compressed by a rare method; zip it again with `zip -r` or `zip -0r`"
                )
            sizes = [min(value, _MOST) for value in (info.header_offset, info.compress_size, info.file_size)]
            members[name] = (sizes[0], sizes[1], sizes[2], info.compress_type, info.CRC)
    return members


def _tar_members(root: Path, wanted: Callable[[str], bool], limits: Limits) -> dict[str, _Member]:
    return {name: (start, size, size, -1, 0) for name, start, size in tar_members(root, limits) if wanted(name)}


def _tars_in_tar(root: Path, wanted: Callable[[str], bool], limits: Limits) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    for tar, first, length in tar_members(root, limits):
        if not tar.endswith(".tar"):
            continue
        for name, start, size in tar_members(root, limits, first, first + length):
            path = f"{tar.removesuffix('.tar')}/{name}"
            if wanted(path):
                members[path] = (start, size, size, -1, 0)
        limits.check_members(len(members), str(root))
    return members


def _members_of(root: Path, nested: bool) -> Callable[[Path, Callable[[str], bool], Limits], dict[str, _Member]]:
    if nested:
        return _tars_in_tar
    return _zip_members if zipfile.is_zipfile(root) else _tar_members


def _top_folder(names: Sequence[str]) -> str:
    """The single top folder, with its slash, of all names, at least two levels above each; "" if there is none."""
    if not names:
        return ""
    top, slash, _ = names[0].partition("/")
    prefix = top + slash
    if split_of(top) or any(not n.startswith(prefix) or n.count("/") < 2 for n in names):
        return ""
    return prefix
