"""Random numbers of the processes that read for a user's DataLoader."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...base.rng import seed_host
from ...core.torch_compat import at_each_epoch, draw_base_seed


class ReaderSeeds:
    """`worker_init_fn` that seeds the processes of a loader.

    torch seeds those of all ranks alike, as the common order of samples is drawn from the same generator, and seeds
    processes that live for many epochs when it starts them. Here they are seeded by rank, and at the beginning of each
    epoch.

    Args:
        rank: of the worker.
        first: the loader's own `worker_init_fn`.
        persistent: whether the processes live for many epochs.
    """

    def __init__(self, rank: int, first: Callable[[int], None] | None, persistent: bool = False):
        self._rank = rank
        self._first = first
        self._epoch_seed = torch.zeros((), dtype=torch.int64).share_memory_() if persistent else None

    def __call__(self, number: int) -> None:
        if self._rank:
            seed_host(torch.initial_seed(), self._rank)
        if self._epoch_seed is not None:
            at_each_epoch(partial(self._seed_epoch, number))
        if self._first is not None:
            self._first(number)

    def begin_epoch(self, loader: Any, seed: int) -> None:
        """Seed the readers of an epoch; to be called in the worker before an iterator of the loader is asked for."""
        if self._epoch_seed is not None:
            self._epoch_seed.fill_(seed)
            draw_base_seed(loader)

    def _seed_epoch(self, number: int) -> None:
        assert self._epoch_seed is not None
        seed_host(int(self._epoch_seed), self._rank, number)
