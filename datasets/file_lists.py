"""Lists of files that are read once: by all splits of a process, and, of large archives, by all processes of a user."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from .cache_folder import cache_folder

LARGE = 50_000
"""Files of an archive from which its list is kept on the disk. Reading 30,000 headers takes 0.2 s of a .zip, 0.7 s of a
.tar; a folder's names take 0.04 s, and are not kept."""
_SETTLED_NS = 2_000_000_000
"""Age from which a time of change can be trusted: within a tick of the clock there may be two changes."""


class FileStates:
    """Sizes and times of change of an archive, or of all folders in which files were found."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, tuple[int, int, int]] = {}

    def note(self, path: str | Path, about: os.stat_result) -> None:
        """Take up a path, which is read after this."""
        self._seen[os.path.abspath(path)] = _state(about)

    @property
    def settled(self) -> bool:
        """Whether nothing had changed shortly before it was made."""
        return all(changed < self._began - _SETTLED_NS for _, changed, _ in self._seen.values())

    @property
    def current(self) -> bool:
        """Whether everything is as it was."""
        with suppress(OSError):
            return self.settled and all(_state(os.stat(path)) == state for path, state in self._seen.items())
        return False

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self._seen.items())).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _state(about: os.stat_result) -> tuple[int, int, int]:
    return (about.st_size, about.st_mtime_ns, about.st_ino)


class _Listed(Protocol):
    @property
    def snapshot(self) -> FileStates: ...


_Files = TypeVar("_Files", bound=_Listed)
_open: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_lock = Lock()


def shared(key: tuple[object, ...], make: Callable[[], _Files]) -> _Files:
    """The files that another dataset of this process holds under the key; new ones if something has changed."""
    with _lock:
        found = _open.get(key)
        if found is None or not found.snapshot.current:
            found = _open[key] = make()
        return found


Table = dict[str, NDArray[Any]]


def kept(snapshot: FileStates, root: Path, *key: object) -> Path | None:
    """The file in which an archive's list may be kept; None if the archive has just been changed."""
    if not snapshot.settled:
        return None
    about = hashlib.sha256(repr((os.path.abspath(root), *key)).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return cache_folder() / "files" / f"{about}-{snapshot.digest()}.npz"


def read_kept(path: Path | None, names: Iterable[str]) -> Table | None:
    """The arrays of a kept list; None if there is none, or it is damaged."""
    # whatever is wrong with it, the archive is read again
    with suppress(Exception):
        if path is not None and path.is_file():
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in names}
    return None


def write_kept(path: Path | None, table: Table) -> None:
    """Keep a list in place of older ones of the same archive. A disk that takes none is no error."""
    if path is None:
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                np.savez(file, **table)  # pyright: ignore[reportArgumentType]
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.npz"):
            if old != path:
                old.unlink(missing_ok=True)
