"""Limits of what is read from a data set: a hostile or damaged file is an unreadable sample."""

import gzip
import io
import os
import stat
from dataclasses import dataclass
from typing import IO


class TooLargeError(ValueError):
    """An image beyond a limit, of every decoder."""


@dataclass(frozen=True)
class Limits:
    """`dataset.limits`. What exceeds one is an unreadable sample (dataset.max_bad_samples).

    Args:
        file_bytes: bytes of a file, or of an archive's member after decompression.
        pixels: pixels of an image, by its header.
        scans: scans of a JPEG: decoding time is their number times the pixels.
        members: files and folders of a directory or an archive.
        depth: folders inside each other.
        links: paths that lead to one folder through symbolic links.
    """

    file_bytes: int = 1 << 28
    pixels: int = 250_000_000
    scans: int = 64
    members: int = 20_000_000
    depth: int = 64
    links: int = 100

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"dataset.limits.{name}={value} must be at least 1")

    def check_bytes(self, size: int, name: object) -> None:
        """Raise ValueError if a file is too large. `name` begins the message."""
        if size > self.file_bytes:
            raise ValueError(f"{name}: {size:,} bytes are more than dataset.limits.file_bytes={self.file_bytes}")

    def check_pixels(self, width: int, height: int) -> None:
        """Raise TooLargeError if an image is too large."""
        if width * height > self.pixels:
            raise TooLargeError(f"{width} x {height} pixels are more than dataset.limits.pixels={self.pixels}")

    def check_members(self, count: int, name: str) -> None:
        """Raise ValueError if there are too many files."""
        if count > self.members:
            raise ValueError(f"{name} has more files than dataset.limits.members={self.members}")


DEFAULTS = Limits()


def read_regular(path: str, limits: Limits, most: int = -1) -> bytes:
    """The whole content of a regular file, or its first `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is a FIFO, a device or a directory, or too large.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would block
    with open(handle, "rb", buffering=0) as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path} is not a regular file")
        limits.check_bytes(about.st_size, path)
        return file.read(most)


class CountedStream(io.RawIOBase):
    """A stream that ends with ValueError after `most` bytes, such as the output of a decompressor.

    Args:
        most: bytes of the whole stream.
        name: begins the message.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, most: int, name: str) -> None:
        super().__init__()
        self._stream, self._most, self._name, self._read = stream, most, name, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(min(size, self._most + 1) if size >= 0 else self._most + 1)
        self._read += len(data)
        if self._read > self._most:
            raise ValueError(f"{self._name}: more bytes than dataset.limits.file_bytes={self._most}")
        return data


class SmallReads(io.RawIOBase):
    """A seekable stream without large reads: tarfile reads a header of any size that it declares.

    Args:
        most: bytes of one read.
    """

    def __init__(self, stream: IO[bytes], most: int, name: str) -> None:
        super().__init__()
        self._stream, self._most, self._name = stream, most, name

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= self._most:
            raise ValueError(f"{self._name}: a header of {size:,} bytes at byte {self.tell():,}")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
