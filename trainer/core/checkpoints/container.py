"""The files of a checkpoint as containers: verified before anything is loaded from them, and named where damaged."""

import errno
import gc
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...base.open_files import is_lack
from .checkpoint_size import refuse_larger_than_file, refuse_odd_directory, refuse_oversized_tensors
from .pickle_code import MAX_BYTES, ContainsCode, refuse_code

_DAMAGE = (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, LookupError)


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
    with _open_zip(path) as container:
        _refuse_code(container, path.stat().st_size)
        broken = container.testzip()
    if broken is not None:
        raise ValueError(f"checksum of {broken} does not match")


def check_plain(path: Path) -> None:
    """
    Raises:
        ValueError, LookupError: the file holds what `load` would refuse, besides damage.
    """
    with _open_zip(path) as container:
        _refuse_code(container, path.stat().st_size)


@contextmanager
def _open_zip(path: Path) -> Generator[zipfile.ZipFile, None, None]:
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise DamagedCheckpoint(f"{path} is no checkpoint: not a zip file")
    refuse_odd_directory(path)
    with zipfile.ZipFile(path) as container:
        refuse_larger_than_file(container)
        yield container


def _refuse_code(container: zipfile.ZipFile, on_disk: int) -> None:
    names = [entry.filename.lower() for entry in container.infolist()]
    pickles = [entry for entry in container.infolist() if entry.filename.lower().endswith("data.pkl")]
    if len(pickles) != 1 or len({*names}) != len(names):  # torch looks entries up by name, in any case
        raise ValueError("it holds no data.pkl, or a name twice")
    if pickles[0].file_size > MAX_BYTES:
        raise ValueError(f"its data.pkl has {pickles[0].file_size:,} bytes, at most {MAX_BYTES:,} are read")
    # the scan makes a list for each value, and the collector would look at all of the process again and again
    collects = gc.isenabled()
    gc.disable()
    try:
        refuse_code(container.read(pickles[0]), on_disk)
    finally:
        if collects:
            gc.enable()


@contextmanager
def _damage_named(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except DamagedCheckpoint:
        raise
    except ContainsCode as error:
        raise DamagedCheckpoint(f"{path} contains code (`{error}`): refused") from None
    except Exception as error:
        if _is_lack(error):
            raise
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise UnreadableCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        is_damage = isinstance(error, _DAMAGE)
        found = f"{path} is {'damaged' if is_damage else 'not a Leyden checkpoint'}: {_first_line(error)}"
        # of a foreign file's error (pickle.UnpicklingError) torch's text advises to load it unsafely
        raise DamagedCheckpoint(found) from (error if is_damage else None)


def _is_lack(error: Exception) -> bool:
    """Whether the host lacks memory or descriptors: the file may be whole, and must not be noted as damaged."""
    lack = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or is_lack(error)
    return lack or "DefaultCPUAllocator" in str(error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
