"""The files of a checkpoint as containers: verified before anything is loaded from them, and named where damaged."""

import errno
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...base.errors import listed
from ...base.open_files import is_lack
from .checkpoint_size import refuse_larger_than_file, refuse_many_entries, refuse_oversized_tensors
from .pickle_code import code_in

_DAMAGE = (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, KeyError)


class DamagedCheckpoint(ValueError):
    """A truncated, altered or foreign checkpoint file."""


class UnreadableCheckpoint(DamagedCheckpoint):
    """A checkpoint file that the file system does not give now: it may be whole."""


def verify(path: Path) -> None:
    """Verify sizes and checksums of a file's entries.

    Raises:
        DamagedCheckpoint: they do not match, or the file is missing.
    """
    with _damage_named(path):
        _verify(path)


def load(path: Path) -> Any:
    """The content of a file, every byte verified, nothing executed.

    Raises:
        DamagedCheckpoint: it is truncated, altered, or contains code.
    """
    with _damage_named(path):
        _verify(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        refuse_oversized_tensors(content, path.stat().st_size)
        return content


def map_tensors(path: Path) -> Any:
    """The content of a file that was verified: tensors are read where they are used.

    Raises:
        DamagedCheckpoint: as `load`.
    """
    with _damage_named(path):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        refuse_oversized_tensors(content, path.stat().st_size)
        return content


def _verify(path: Path) -> None:
    refuse_many_entries(path)
    with zipfile.ZipFile(path) as container:
        refuse_larger_than_file(container)
        broken = container.testzip()
    if broken is not None:
        raise ValueError(f"checksum of {broken} does not match")


@contextmanager
def _damage_named(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except Exception as error:
        if _is_lack(error):
            raise
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise UnreadableCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        is_damage = isinstance(error, _DAMAGE)
        found = f"{path} is {'damaged' if is_damage else 'not a Leyden checkpoint'}: {_first_line(error)}"
        # of a foreign file's error (pickle.UnpicklingError) torch's text advises to load it unsafely
        raise DamagedCheckpoint(_with_code(path) or found) from (error if is_damage else None)


def _is_lack(error: Exception) -> bool:
    """Whether the host lacks memory or descriptors: the file may be whole, and must not be noted as damaged."""
    lack = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or is_lack(error)
    return lack or "DefaultCPUAllocator" in str(error)


def _with_code(path: Path) -> str:
    """What to say of a file that contains code; "" of one that contains none."""
    try:
        names = code_in(path)
    except Exception:  # damaged in yet another way
        return ""
    return f"{path} contains code ({listed([f'`{name}`' for name in names], 4)}): refused" if names else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
