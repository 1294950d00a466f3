"""The index of a sharded checkpoint: `step=N.index.json`, which may be anybody's, checked before it is followed."""

import re
from pathlib import Path
from typing import Any, TypeGuard

import torch

from ...base.untrusted_file import MAX_BYTES, MAX_VALUES, read_json
from ...runs.checkpoints import bytes_of_shards, index_path
from .container import DamagedCheckpoint

_DTYPES = {str(kind).removeprefix("torch.") for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_OF_OPTIMIZER = re.compile(r"optimizer/[0-9]{1,9}/.+", re.DOTALL)
_MAX_DIMENSIONS = 64
_LARGEST = 1 << 53


def read_index(main: Path, workers: int) -> dict[str, Any]:
    """The entries of all divided tensors, by name: dtype, shape, and the slices with their worker, offset and shape.

    Raises:
        DamagedCheckpoint: the index is missing, of another number of workers, or an entry is malformed.
    """
    path = index_path(main)
    try:
        # an entry is shorter than the slice that it describes is in its file
        files = bytes_of_shards(main)
        index = read_json(path, max(MAX_BYTES, files), max(MAX_VALUES, files // 16))
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path} is missing or damaged: {error}") from error
    tensors = index.get("tensors") if isinstance(index, dict) else None
    if not isinstance(tensors, dict):
        raise DamagedCheckpoint(f"{path} is damaged: it lists no tensors")
    if index.get("workers") != workers:
        listed = str(index.get("workers"))[:40]
        raise DamagedCheckpoint(f"{path} is damaged: it lists {listed} workers, {main.name} has {workers}")
    for name, entry in tensors.items():
        if not _is_entry(name, entry, workers):
            raise DamagedCheckpoint(f"{path} is damaged: its entry of {name[:80]!r} is none of a divided tensor")
    return tensors


def _is_entry(name: str, entry: Any, workers: int) -> bool:
    if name.startswith("optimizer/") and not _OF_OPTIMIZER.fullmatch(name):
        return False
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in _DTYPES:
        return False
    shape, pieces = entry.get("shape"), entry.get("pieces")
    if not _are_sizes(shape) or not isinstance(pieces, list):
        return False
    if not all(_is_piece(piece, len(shape), workers) for piece in pieces):
        return False
    return len({piece["worker"] for piece in pieces}) == len(pieces)


def _is_piece(piece: Any, dimensions: int, workers: int) -> bool:
    if not isinstance(piece, dict) or type(piece.get("worker")) is not int or not 0 <= piece["worker"] < workers:
        return False
    sides = piece.get("offset"), piece.get("shape")
    return all(_are_sizes(side) and len(side) == dimensions for side in sides)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < _LARGEST for size in value)
    )
