"""The part of a checkpoint that each worker writes for itself, and reading it on any number of workers.

Beside `step=N.ckpt`, which holds what all workers share, lies one file a worker and `step=N.index.json`: for every
divided tensor its shape, and of every piece the file, the offset and the shape. They are written before
`step=N.ckpt`, so that where that file is, they are. Pieces are found by the index alone: nothing is unpickled.
"""

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .whole_file import whole_file


class Piece(NamedTuple):
    """A rectangular part of a tensor."""

    tensor: Tensor
    offset: tuple[int, ...]
    """Where its first element is in the whole."""
    whole: tuple[int, ...]
    """Shape of the whole."""


@dataclass
class Shard:
    """What one worker writes for itself."""

    pieces: dict[str, Piece] = field(default_factory=dict)
    """Parts of tensors that the workers hold together, named `model/NAME`, `optimizer/INDEX/KEY` or
    `callbacks/CALLBACK/NAME`."""
    own: dict[str, Any] = field(default_factory=dict)
    """Plain values and tensors that only this worker has."""

    @property
    def finite(self) -> bool:
        """Whether every piece is free of NaN and infinity."""
        floating = [piece.tensor for piece in self.pieces.values() if piece.tensor.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in floating)

    def listed(self) -> dict[str, Any]:
        """What the index says of this shard."""
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
        """What the worker's file holds."""
        # clone: a view would drag its whole storage into the file
        return {"pieces": {name: piece.tensor.detach().clone() for name, piece in self.pieces.items()}, "own": self.own}


def shard_path(main: Path, worker: int) -> Path:
    """The file of one worker beside a checkpoint."""
    return main.with_name(f"{main.stem}.shard{worker:04d}.ckpt")


def index_path(main: Path) -> Path:
    return main.with_name(f"{main.stem}.index.json")


def write_index(main: Path, listed: Sequence[dict[str, Any]]) -> None:
    """One index of what all workers have listed, in the order of their ranks."""
    tensors: dict[str, Any] = {}
    for worker, pieces in enumerate(listed):
        for name, piece in pieces.items():
            entry = tensors.setdefault(name, {"dtype": piece["dtype"], "shape": piece["whole"], "pieces": []})
            assert entry["shape"] == piece["whole"], name
            entry["pieces"].append({"worker": worker, "offset": piece["offset"], "shape": piece["shape"]})
    with whole_file(index_path(main)) as file:
        json.dump({"workers": len(listed), "tensors": tensors}, file, indent=1)


class Shards:
    """The workers' files of one checkpoint."""

    def __init__(self, main: Path, workers: int):
        """
        Args:
            main: `step=N.ckpt` under its own name, not `last.ckpt`.

        Raises:
            ValueError: the index is missing or damaged.
        """
        self.main = main
        self.workers = workers
        try:
            index = json.loads(index_path(main).read_text())
            self.tensors: dict[str, Any] = index["tensors"]
            complete = index["workers"] == workers
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{index_path(main)} is missing or damaged: {error}") from error
        if not complete:
            raise ValueError(f"{index_path(main)} lists {index['workers']} workers, {main.name} has {workers}")
        self._open: dict[int, dict[str, Any]] = {}

    def verify(self) -> None:
        """
        Raises:
            ValueError: a worker's file is missing or damaged.
        """
        for worker in range(self.workers):
            verify_file(shard_path(self.main, worker))

    def own(self, worker: int) -> dict[str, Any]:
        """What only that worker had."""
        return self._file(worker)["own"]

    def _file(self, worker: int) -> dict[str, Any]:
        if worker not in self._open:
            path = shard_path(self.main, worker)
            # mapped: of a piece that is not asked for no byte is read
            self._open[worker] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return self._open[worker]

    def region(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A rectangle of a divided tensor, put together from whatever pieces it lies in."""
        entry = self.tensors[name]
        result = torch.empty(list(shape), dtype=getattr(torch, entry["dtype"]))
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
                result[into] = self._file(piece["worker"])["pieces"][name][of]
                covered += math.prod(h - a for a, h in zip(low, high, strict=True))
        if covered != result.numel():
            raise ValueError(f"{index_path(self.main)}: the pieces of {name} do not cover it")
        return result

    def whole(self, name: str) -> Tensor:
        """A divided tensor as one."""
        shape = self.tensors[name]["shape"]
        return self.region(name, [0] * len(shape), shape)

    def put_together(self, state: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's content in the layout of one device."""
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


def together(saved: dict[str, Any], shards: Shards | None, prefix: str) -> dict[str, Any]:
    """Saved values by name, and with them, whole, the divided tensors whose names begin with `prefix`."""
    found = [] if shards is None else [name for name in shards.tensors if name.startswith(prefix)]
    return {**saved, **{name.removeprefix(prefix): shards.whole(name) for name in found if shards is not None}}


def verify_file(path: Path) -> None:
    """
    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        with zipfile.ZipFile(path) as container:
            broken = container.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is missing or damaged: {error}") from error
    if broken is not None:
        raise ValueError(f"{path} is damaged: checksum of {broken} does not match")


def remove(main: Path) -> None:
    """Delete what lies beside a checkpoint that was deleted."""
    for path in [index_path(main), *main.parent.glob(f"{main.stem}.shard*.ckpt")]:
        path.unlink(missing_ok=True)
