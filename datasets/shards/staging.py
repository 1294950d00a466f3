"""Copies of shards on a disk of the node: made once a node, checked, and used again by later runs."""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .index import NewFile, ShardFile, ShardSet

_PIECE = 1 << 22
"""Bytes copied at a time."""


def staged(root: Path, found: ShardSet, stage_dir: str | Path | None) -> Path:
    """The folder of this node with all shards of a set, after they were copied there unless they are there already.

    A copy is written beside its place, flushed, read again, compared by CRC-32 and renamed, so a shard at its place is
    whole. It is that of its original as long as both have the same size and time of change. Of several processes one
    copies, and the others wait.

    Args:
        stage_dir: folder of a local disk; None: that of temporary files (TMPDIR, /tmp).

    Raises:
        ValueError: it has no room, belongs to another user, or gives other bytes than were written.
        OSError: the disk fails.
    """
    base = Path(stage_dir).expanduser() if stage_dir is not None else Path(tempfile.gettempdir())
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:24]
    folder = _own_folder(base, f"leyden-shards-{os.getuid()}") / digest
    folder.mkdir(exist_ok=True)
    shards = [shard for split in found.splits.values() for shard in split.shards]
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in folder.rglob(".*.[0-9]*"):  # of processes that were killed: no other is in here
            left_over.unlink()
        missing = [shard for shard in shards if not _is_current(root / shard.name, folder / shard.name)]
        _check_space(folder, missing)
        for shard in missing:
            _copy(root / shard.name, folder / shard.name)
    return folder


def _own_folder(base: Path, name: str) -> Path:
    """A folder that only this user can read and write: in /tmp others could have made it before."""
    folder = base / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise ValueError(f"dataset.stage_dir={base} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise ValueError(f"dataset.stage_dir={base} cannot be used: {folder} is another user's, or open to others")
    return folder


def _is_current(original: Path, copy: Path) -> bool:
    about = original.stat()
    with suppress(OSError):
        there = copy.lstat()
        same = (there.st_size, there.st_mtime_ns) == (about.st_size, about.st_mtime_ns)
        return stat.S_ISREG(there.st_mode) and same
    return False


def _check_space(folder: Path, missing: Sequence[ShardFile]) -> None:
    needed, free = sum(shard.bytes for shard in missing), shutil.disk_usage(folder).free
    if needed > free:
        text = f"dataset.stage=node needs {needed / 1e9:.3g} GB in {folder}, and {free / 1e9:.3g} GB are free"
        raise ValueError(f"{text}: dataset.stage_dir=FOLDER of a larger disk, or dataset.stage=none")


def _copy(original: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    about = original.stat()
    file = NewFile(copy)
    try:
        written = _checksum(original, file.write)
        file.sync()
        if _checksum(file.beside) != written:
            raise ValueError(f"{copy} has other bytes than were written: the disk of dataset.stage_dir is damaged")
        os.utime(file.beside, ns=(about.st_atime_ns, about.st_mtime_ns))
        file.rename()
    finally:
        file.discard()


def _checksum(path: Path, take: Callable[[bytes], None] | None = None) -> int:
    """CRC-32 of a file, each piece of which is handed on."""
    found = 0
    for piece in _pieces(path):
        found = zlib.crc32(piece, found)
        if take is not None:
            take(piece)
    return found


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        # what was written is read from the disk, and what is read once needs no memory
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(_PIECE):
            yield piece
