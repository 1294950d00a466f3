"""Reading images out of shards by offset, from any number of threads and forked processes."""

import mmap
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OPEN = 256
"""Shards that stay open: a process may have 1,024 files, and a set thousands of shards."""

_READ_AHEAD = 1 << 17
"""Bytes asked for in one call: Linux reads no more than the device's read-ahead of what is asked for at a time."""


class ShardFiles:
    """Open shards.

    Reads pass their offset (pread), so forked processes share no position. Handles are not pickled.

    Args:
        paths: of all shards.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self._start()

    def _start(self) -> None:
        self._lock = Lock()
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Bytes of a shard; fewer than `size` if it ends before.

        Raises:
            OSError: it cannot be opened or read, with its path.
        """
        try:
            opened = self._opened(shard)
            return os.pread(opened.handle, size, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.paths[shard])) from error

    def pixels(self, shard: int, offset: int, shape: tuple[int, int, int]) -> NDArray[np.uint8] | None:
        """Memory-mapped pixels, of which writing changes a private copy; None if the shard ends before them.

        Raises:
            OSError: it cannot be opened, with its path.
        """
        try:
            return self._opened(shard).pixels(offset, shape)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.paths[shard])) from error

    def read_ahead(self, shard: int, offset: int, size: int) -> None:
        """Ask the system to read a part of a shard into its page cache. Errors show when it is read."""
        with suppress(OSError):
            opened = self._opened(shard)
            for start in range(offset, offset + size, _READ_AHEAD):
                length = min(_READ_AHEAD, offset + size - start)
                os.posix_fadvise(opened.handle, start, length, os.POSIX_FADV_WILLNEED)

    def _opened(self, shard: int) -> "_OpenShard":
        """An open shard. The caller's reference keeps it open if another thread takes it off the list meanwhile."""
        with self._lock:
            found = self._open.get(shard)
            if found is None:
                found = self._open[shard] = _OpenShard(self.paths[shard])
                if len(self._open) > _OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(shard)
            return found

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.paths = state["paths"]
        self._start()


class _OpenShard:
    """A file that is closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._mapping: mmap.mmap | None = None

    def pixels(self, offset: int, shape: tuple[int, int, int]) -> NDArray[np.uint8] | None:
        # asked for each image: touching a page beyond the end of a file that was cut off meanwhile ends the process
        size, count = os.fstat(self.handle).st_size, shape[0] * shape[1] * shape[2]
        if self._mapping is None:
            self._mapping = mmap.mmap(self.handle, size, access=mmap.ACCESS_COPY)
        if offset + count > min(size, len(self._mapping)):
            return None
        return np.frombuffer(self._mapping, np.uint8, count, offset).reshape(shape)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)
