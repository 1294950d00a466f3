"""Atomic writes: a file appears completely or not at all."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def beside(path: Path) -> Path:
    """An unpredictable name for a temporary file in the folder of `path`: no link can have been put there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def open_new(name: str, flags: int) -> int:
    """An `opener` of files that must not exist yet, neither as links."""
    return os.open(name, (flags & ~os.O_TRUNC) | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Context whose OSErrors name the file or folder: those of a write and of fsync name none, and a failure of the run
    folder's storage is known by its file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_file(path: Path, mode: str = "w", **options: Any) -> Generator[IO[Any], None, None]:
    """Write to a temporary file, flush, rename; on any failure the old file stays and the temporary one is removed.

    An OSError names the file, not the temporary one.

    Args:
        mode: "w" or "wb", passed to `open` with `options`.
    """
    temporary = beside(path)
    try:
        with open(temporary, mode, opener=open_new, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # of a read-only folder
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def write_atomically(file: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(file, encoding="utf-8") as stream:
        stream.write(text)
