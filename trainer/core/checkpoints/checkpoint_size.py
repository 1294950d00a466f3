"""Sizes that a checkpoint file declares, compared with the file before memory is taken."""

import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_REPEATED = 4
"""Names under which a checkpoint may hold the same values: tied weights and their averages."""
_SLACK = 64 << 20
_MAX_DIRECTORY_BYTES = 16 << 20
"""Bytes of a container's list of entries, about 100 for each tensor; zipfile takes 600 bytes of memory for each."""
_END = struct.Struct("<4s8xII2x")  # signature, disks and numbers of entries, bytes of the list, its offset, comment
_END_64 = struct.Struct("<4s36xQQ")
_LOCATOR_64 = struct.Struct("<4s4xQ4x")


def refuse_odd_directory(path: Path) -> None:
    """Refuse a container whose list of entries is not where torch.save puts it, or takes more memory than any
    checkpoint's. Of another one zipfile, which verifies it, and torch, which loads it, may find different lists.

    Raises:
        ValueError: says what is odd.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END.size - _LOCATOR_64.size - _END_64.size))
        tail = file.read().rjust(_END.size + _LOCATOR_64.size + _END_64.size, b"\0")
    signature, declared, offset = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        raise ValueError("its end is not a checkpoint's: it may be cut off")
    end, (locator, at_64) = size - _END.size, _LOCATOR_64.unpack(tail[_END_64.size : -_END.size])
    if locator == b"PK\x06\x07":
        end -= _LOCATOR_64.size + _END_64.size
        signature, declared, offset = _END_64.unpack(tail[: _END_64.size])
        if signature != b"PK\x06\x06" or at_64 != end:
            raise ValueError("its end is not a checkpoint's")
    if declared > _MAX_DIRECTORY_BYTES:
        raise ValueError(f"its list of entries has {declared:,} bytes, at most {_MAX_DIRECTORY_BYTES:,} are read")
    if offset + declared != end:
        raise ValueError("its list of entries is not at its end")


def refuse_larger_than_file(container: zipfile.ZipFile) -> None:
    """Refuse a container whose entries declare more than the file holds: torch.save never compresses.

    Raises:
        ValueError: a compressed entry, or more bytes in all entries than in the file.
    """
    assert container.fp is not None
    on_disk = os.fstat(container.fp.fileno()).st_size
    declared = 0
    for entry in container.infolist():
        declared += max(entry.file_size, entry.compress_size)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its entry {entry.filename} is compressed, which no checkpoint is")
        if declared > on_disk:
            raise ValueError(f"its entries up to {entry.filename} declare {declared:,} bytes, the file has {on_disk:,}")


def refuse_oversized_tensors(content: Any, on_disk: int) -> None:
    """Refuse tensors whose shapes declare far more values than the file holds, as by strides of 0.

    Args:
        content: what torch.load returned.
        on_disk: bytes of the file.

    Raises:
        ValueError: names the largest tensor.
    """
    found: dict[str, int] = {}
    _note(content, "", found, set())
    most = _REPEATED * on_disk + _SLACK
    if sum(found.values()) > most:
        name = max(found, key=found.__getitem__)
        raise ValueError(f"its tensors declare {sum(found.values()):,} bytes ({name}: {found[name]:,}), "
                         f"the file has {on_disk:,}")  # fmt: skip


def _note(value: Any, name: str, found: dict[str, int], seen: set[int]) -> None:
    """Record the declared bytes of every tensor; a container that occurs again is entered once."""
    if isinstance(value, torch.Tensor):
        found[name] = value.numel() * value.element_size()
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            _note(item, f"{name}.{key}" if name else str(key), found, seen)
