"""Errors of the storage under a run folder, each as one sentence: a full disk, a lost or a read-only folder."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from .errors import Explained, SystemFailure
from .paths import shorten_path

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
_FAULTS = (errno.EIO, errno.EFBIG, errno.ETIMEDOUT, errno.ENXIO, errno.EREMOTEIO)
QUOTA_USED_UP = "the disk quota is used up"
ENOUGH_BYTES = 1 << 20
"""Free bytes from which writing is tried again after a full disk."""
_HELD = 8
"""Folders that a process keeps open: a notebook's trains a run after another, and each leads one, or two, at a time."""
_open_folders: dict[Path, int] = {}


class StorageError(SystemFailure):
    """The folder of a run cannot be written or read any more.

    Attributes:
        lasting: whether a restart would meet it again; errors of a disk or a file server may pass.
    """

    lasting = True


def hold(folder: Path) -> Path:
    """Keep a run folder open, so that it is found again if it is renamed; the last few of this process. Returns it."""
    if folder in _open_folders:
        _open_folders[folder] = _open_folders.pop(folder)  # the last to be closed
    elif hasattr(os, "O_PATH"):
        with suppress(OSError):
            _open_folders[folder] = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        while len(_open_folders) > _HELD:
            os.close(_open_folders.pop(next(iter(_open_folders))))
    return folder


def current_place(folder: Path) -> Path | None:
    """The folder, or its new place if it was renamed; None if it was removed or cannot be found."""
    if folder.is_dir():
        return folder
    if folder not in _open_folders:
        return None
    with suppress(OSError):
        place = Path(os.readlink(f"/proc/self/fd/{_open_folders[folder]}"))
        return place if place.is_dir() else None
    return None


def storage_error(error: Exception, folder: Path) -> StorageError | None:
    """An error of a run folder's storage, explained; None for an error that has another cause."""
    if not isinstance(error, OSError) or isinstance(error, Explained):
        return None
    sentence = describe_failure(error, folder)
    if sentence is None:
        return None
    found = StorageError(sentence)
    found.lasting = error.errno in (*NO_SPACE, *_LOCKED) or not _is_there(folder)
    return found


def describe_failure(error: OSError, folder: Path, needed: int = 0) -> str | None:
    """One sentence about an error of a run folder's storage; None for an error that has another cause.

    Args:
        needed: bytes that were to be written; 0: unknown.
    """
    file = _relative(error.filename, folder)
    if file is None and error.errno not in NO_SPACE:
        return None
    if error.errno in _GONE and not _is_there(folder):
        place = current_place(folder)
        how = "removed" if place is None else f"renamed to {shorten_path(place)}"
        return f"the run folder {shorten_path(folder)} was {how} during the run"
    if error.errno in NO_SPACE:
        return _no_space(error, folder, file, needed)
    if error.errno in _LOCKED:
        return f"the run folder {shorten_path(folder)} cannot be written: {file}: {error.strerror}; it may be read-only"
    if error.errno in (*_FAULTS, *_GONE):
        return f"the disk of the run folder {shorten_path(folder)} has an error: {file}: {error.strerror}"
    return None


def _no_space(error: OSError, folder: Path, file: str | None, needed: int) -> str | None:
    free = free_bytes(folder)
    if file is None and free >= ENOUGH_BYTES:
        return None  # another disk, such as that of temporary files
    what = f"{file or 'a file'} " + (f"takes about {_megabytes(needed)}" if needed else "could not be written")
    if error.errno == errno.EDQUOT:
        return f"{QUOTA_USED_UP} at {shorten_path(folder)}: {what}; remove files that count in the quota first"
    if _is_uncounted(free, needed):
        free_there = f"although {_megabytes(free)} are free by its file system"
        unknown = "storage under it (thin provisioning) or a limit of the folder is used up: free some space first"
        return f"the disk takes no more at {shorten_path(folder)}: {what}, {free_there}; {unknown}"
    missing = f", {_megabytes(needed - free)} are missing" if needed > free else ""
    space = f"{_megabytes(free)} are free{missing}; free some space first"
    return f"the disk is full at {shorten_path(folder)}: {what}, {space}"


def _is_uncounted(free: int, needed: int) -> bool:
    """Whether the lack of space is one that the file system does not know of.

    Other workers' files of the same checkpoint, which have failed and are removed, may be free by now.
    """
    return free >= ENOUGH_BYTES + 4 * needed


def reason_of_loss(error: OSError, folder: Path) -> str:
    """Why there is no space, for a log's warning."""
    if error.errno == errno.EDQUOT:
        return QUOTA_USED_UP
    free = free_bytes(folder)
    full = "the disk takes no more" if _is_uncounted(free, 0) else "the disk is full"
    return f"{full} ({_megabytes(free)} free)"


def no_space_for(error: OSError, path: Path, needed: int) -> StorageError | None:
    """The error of a file for which there is no space; None for another error.

    Args:
        path: of a checkpoint in a folder of the run folder.
        needed: bytes of the file.
    """
    if error.errno not in NO_SPACE:
        return None
    error.filename = str(path)
    return StorageError(describe_failure(error, path.parent.parent, needed) or str(error))


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder for this user; 0 where it cannot be asked, or has no more inodes."""
    try:
        inodes = os.statvfs(folder)
        return shutil.disk_usage(folder).free if inodes.f_favail or not inodes.f_files else 0
    except OSError:
        return 0


def _relative(file: object, folder: Path) -> str | None:
    """The name of a file in the folder; None for one elsewhere."""
    if not isinstance(file, str | bytes):
        return None
    path = Path(os.fsdecode(file))
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else None


def _is_there(folder: Path) -> bool:
    with suppress(OSError):
        return folder.is_dir()
    return False


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
