"""The files of a checkpoint as containers: verified before anything is loaded from them, and named where damaged."""

import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...base.errors import listed
from .checkpoint_size import refuse_larger_than_file, refuse_many_entries, refuse_oversized_tensors
from .pickle_code import code_in


class DamagedCheckpoint(ValueError):
    """A truncated, altered or foreign checkpoint file."""


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
    except MemoryError:
        raise
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(_with_code(path) or f"{path} is damaged: {_first_line(error)}") from error
    except Exception as error:  # pickle.UnpicklingError and the like: a foreign file
        text = _with_code(path) or f"{path} is not a Leyden checkpoint: {_first_line(error)}"
        raise DamagedCheckpoint(text) from None  # torch's own text advises to load it unsafely


def _with_code(path: Path) -> str:
    """What to say of a file that contains code; "" of one that contains none."""
    try:
        names = code_in(path)
    except Exception:  # damaged in yet another way
        return ""
    return f"{path} contains code ({listed([f'`{name}`' for name in names], 4)}): refused" if names else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
