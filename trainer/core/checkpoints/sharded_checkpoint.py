"""Sharded checkpoints: one file for each worker, readable on any number of workers.

Next to `step=N.ckpt`, with the values shared by all workers, are one file for each worker and `step=N.index.json`: the
shape of every divided tensor, and file, offset and shape of every slice. They are written first, so that `step=N.ckpt`
implies that they exist. Slices are found by the index alone: nothing is unpickled.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.atomic_file import atomic_file
from ...runs.checkpoints import bytes_of_shards, index_path, shard_path
from .checkpoint_content import is_dense
from .container import DamagedCheckpoint, map_tensors, verify
from .shard_index import read_index


class TensorSlice(NamedTuple):
    """A rectangular part of a tensor."""

    tensor: Tensor
    offset: tuple[int, ...]
    """Offset of its first element in the whole."""
    whole: tuple[int, ...]
    """Shape of the whole."""


@dataclass
class Shard:
    """The file of one worker."""

    pieces: dict[str, TensorSlice] = field(default_factory=dict)
    """Slices of tensors divided over the workers, named `model/NAME`, `optimizer/INDEX/KEY` or
    `callbacks/CALLBACK/NAME`."""
    own: dict[str, Any] = field(default_factory=dict)
    """Plain values and tensors of this worker alone."""

    @property
    def finite(self) -> bool:
        """Whether every slice is free of NaN and infinity."""
        return are_finite(piece.tensor for piece in self.pieces.values())

    def index_entry(self) -> dict[str, Any]:
        """The index entry of this shard."""
        return {
            name: {
                "dtype": str(piece.tensor.dtype).removeprefix("torch."),
                "whole": list(piece.whole),
                "offset": list(piece.offset),
                "shape": list(piece.tensor.shape),
            }
            for name, piece in self.pieces.items()
        }

    def content(self) -> dict[str, Any]:
        """The content of the worker's file."""
        # clone: a view would be saved with its whole storage
        return {"pieces": {name: piece.tensor.detach().clone() for name, piece in self.pieces.items()}, "own": self.own}


def are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())


def write_index(main: Path, listed: Sequence[dict[str, Any]]) -> None:
    """Write the index of all shards, by rank."""
    tensors: dict[str, Any] = {}
    for worker, pieces in enumerate(listed):
        for name, piece in pieces.items():
            entry = tensors.setdefault(name, {"dtype": piece["dtype"], "shape": piece["whole"], "pieces": []})
            assert entry["shape"] == piece["whole"], name
            entry["pieces"].append({"worker": worker, "offset": piece["offset"], "shape": piece["shape"]})
    with atomic_file(index_path(main)) as file:
        json.dump({"workers": len(listed), "tensors": tensors}, file, indent=1)


class CheckpointShards:
    """The workers' files of one checkpoint."""

    def __init__(self, main: Path, workers: int):
        """Read the index.

        Args:
            main: `step=N.ckpt` under its own name, not `last.ckpt`.

        Raises:
            DamagedCheckpoint: the index is missing or damaged.
        """
        self.main = main
        self.workers = workers
        self.tensors: dict[str, Any] = read_index(main, workers)
        self._bytes = bytes_of_shards(main)
        self._open: dict[int, dict[str, Any]] = {}

    def verify(self) -> None:
        """Verify the checksums of all files, and that the tensors in them are as listed, and finite.

        Raises:
            DamagedCheckpoint: a worker's file is missing or damaged.
        """
        for worker in range(self.workers):
            verify(shard_path(self.main, worker))
        for name, entry in self.tensors.items():
            for piece in entry["pieces"]:
                values = self._slice(name, piece)
                if not are_finite([values]):
                    path = shard_path(self.main, piece["worker"])
                    raise DamagedCheckpoint(f"{path} is damaged: {name} has NaN or infinite values")

    def own(self, worker: int) -> dict[str, Any]:
        """The values of one worker alone."""
        return self._file(worker)["own"]

    def _file(self, worker: int) -> dict[str, Any]:
        if worker not in self._open:
            path = shard_path(self.main, worker)
            content = map_tensors(path)
            parts = [content.get(key) for key in ("pieces", "own")] if isinstance(content, dict) else [None]
            if not all(isinstance(part, dict) for part in parts):
                raise DamagedCheckpoint(f"{path} is damaged: it holds no slices")
            self._open[worker] = content
        return self._open[worker]

    def _slice(self, name: str, piece: Mapping[str, Any]) -> Tensor:
        values = self._file(piece["worker"])["pieces"].get(name)
        if not is_dense(values) or list(values.shape) != piece["shape"]:
            path = shard_path(self.main, piece["worker"])
            raise DamagedCheckpoint(f"{path} is damaged: its {name} is not as the index says")
        return values

    def region(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A rectangle of a divided tensor, assembled from the slices that it overlaps."""
        entry = self.tensors[name]
        dtype = getattr(torch, entry["dtype"])
        if math.prod(shape) * dtype.itemsize > self._bytes:
            raise DamagedCheckpoint(f"{index_path(self.main)}: {name} has more bytes than the workers' files")
        result = torch.empty(list(shape), dtype=dtype)
        covered = 0
        for piece in entry["pieces"]:
            low = [max(o, p) for o, p in zip(offset, piece["offset"], strict=True)]
            high = [
                min(o + s, p + n)
                for o, s, p, n in zip(offset, shape, piece["offset"], piece["shape"], strict=True)
            ]  # fmt: skip
            if all(h > a for a, h in zip(low, high, strict=True)):
                into = tuple(slice(a - o, h - o) for a, h, o in zip(low, high, offset, strict=True))
                of = tuple(slice(a - p, h - p) for a, h, p in zip(low, high, piece["offset"], strict=True))
                result[into] = self._slice(name, piece)[of]
                covered += math.prod(h - a for a, h in zip(low, high, strict=True))
        if covered != result.numel():
            raise DamagedCheckpoint(f"{index_path(self.main)}: the slices of {name} do not cover it")
        return result

    def whole(self, name: str) -> Tensor:
        """A divided tensor in full."""
        shape = self.tensors[name]["shape"]
        return self.region(name, [0] * len(shape), shape)

    def put_together(self, state: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's content in the layout of a single device."""
        model, optimizer = dict(state["model"]), dict(state["optimizer"])
        optimizer["state"] = {index: dict(kept) for index, kept in optimizer["state"].items()}
        for name in self.tensors:
            kind, _, rest = name.partition("/")
            if kind == "model":
                model[rest] = self.whole(name)
            elif kind == "optimizer":
                number, _, key = rest.partition("/")
                optimizer["state"].setdefault(int(number), {})[key] = self.whole(name)
        return {**state, "model": model, "optimizer": optimizer}


def together(saved: dict[str, Any], shards: CheckpointShards | None, prefix: str) -> dict[str, Any]:
    """Saved values by name, with the divided tensors below `prefix` in full."""
    found = [] if shards is None else [name for name in shards.tensors if name.startswith(prefix)]
    return {**saved, **{name.removeprefix(prefix): shards.whole(name) for name in found if shards is not None}}
