"""Opening of files of untrusted folders: regular files alone, and without waiting for a FIFO."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularFile(OSError):
    """A FIFO, a device, a socket or a folder in place of a file."""

    def __init__(self, path: Path):
        super().__init__(errno.EINVAL, "it is no regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename} is not a regular file"


def open_regular(path: Path, follow_links: bool = True) -> BinaryIO:
    """A regular file, opened for reading.

    Args:
        follow_links: whether a symbolic link in its place is followed.

    Raises:
        NotRegularFile: it is none.
        OSError: it cannot be opened.
    """
    # without O_NONBLOCK a FIFO would be waited for
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularFile(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFile(path)
    return open(descriptor, "rb")
