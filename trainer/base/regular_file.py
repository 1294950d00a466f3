"""Opening of files of untrusted folders: regular files alone, and without waiting for a FIFO."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TextIO


class NotRegularFile(OSError):
    """A FIFO, a device, a socket or a folder in place of a file."""

    def __init__(self, path: Path):
        super().__init__(errno.EINVAL, "it is no regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename} is not a regular file"


def open_regular(path: Path, follow_links: bool = True, folder: int | None = None) -> BinaryIO:
    """A regular file, opened for reading.

    Args:
        follow_links: whether a symbolic link in its place is followed.
        folder: descriptor of the opened folder that it lies in; None: it is found by its path.

    Raises:
        NotRegularFile: it is none.
        OSError: it cannot be opened.
    """
    # without O_NONBLOCK a FIFO would be waited for
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularFile(path) from None
        error.filename = str(path)
        raise
    _refuse_other_kinds(descriptor, path)
    return open(descriptor, "rb")


def open_to_append(path: Path) -> TextIO:
    """A regular file, opened for appending text, or created; no link in its place is followed.

    Raises:
        NotRegularFile: it is none.
        OSError: it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a FIFO without a reader, a link
            raise NotRegularFile(path) from None
        raise
    _refuse_other_kinds(descriptor, path)
    return open(descriptor, "a", encoding="utf-8")


def _refuse_other_kinds(descriptor: int, path: Path) -> None:
    """Close and refuse what was opened if it is no regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFile(path)
