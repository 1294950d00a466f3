"""The order of a user-provided loader, its samplers' epoch and the seeds of its batches."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler

from ...base.rng import mix_each
from ...core.lightning_compat import with_sampler

_READING = 1
"""Separates these draws from those of the computation of the same batch."""
_SEEDS = 256
"""Seeds of batches that are computed at once."""


def seeds_of_batches(seed: int, rank: int) -> Iterator[int]:
    """Seeds of the draws in an epoch's batches."""
    for first in count(0, _SEEDS):
        yield from mix_each((seed, _READING, rank), range(first, first + _SEEDS))


def in_order(loader: Any) -> Any:
    """The loader without shuffling, for trainer.overfit_batches."""
    if isinstance(loader.sampler, SequentialSampler):
        return loader
    return with_sampler(loader, SequentialSampler(loader.dataset))


class Share(Sampler[int]):
    """Every `count`-th sample of another sampler, from `index` on."""

    def __init__(self, sampler: Any, index: int, count: int):
        self.sampler = sampler
        self.index = index
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self.sampler), self.index, None, self.count)

    def __len__(self) -> int:
        return max(0, -(-(len(self.sampler) - self.index) // self.count))


def start_epoch(loader: Any, epoch: int, seed: int) -> None:
    """Set the epoch of samplers, and seed user-provided generators, which would continue from the last epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    for holder in holders:
        if isinstance(getattr(holder, "generator", None), torch.Generator):
            holder.generator.manual_seed(seed)  # pyright: ignore[reportOptionalMemberAccess]
    for holder in {id(h): h for h in holders[1:]}.values():
        if hasattr(holder, "set_epoch"):
            holder.set_epoch(epoch)  # pyright: ignore[reportOptionalMemberAccess]
