"""Order of samples: a function of seed, epoch and partitions, independent of the number of workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..base.rng import generator
from .splits import SPLIT_SEED


class PlannedPart(NamedTuple):
    """A part whose samples are not read yet."""

    pairs: list[tuple[int, int]]
    """(index, key) of each sample."""
    samples: int
    all_samples: int
    weight: float
    ends_step: bool
    rounds: tuple[int, int] | None
    step_samples: int


@dataclass(frozen=True)
class SampleOrder:
    """Samples of each global batch of an epoch. Batches do not cross partitions."""

    samples: int
    batch_size: int
    seed: int
    partitions: int = 1
    partition_order: Sequence[int] | Sequence[Sequence[int]] | None = None
    """One order for every epoch, or several, used in turn."""
    begun: dict[int, list[int]] = field(default_factory=dict)
    """By epoch: partitions in the order of their visits, if decided during training."""
    shuffled: bool = True
    """Whether each epoch has its own order; else all have that of the partitions (trainer.overfit_batches)."""

    def partition(self, number: int) -> Tensor:
        """Sample indices of partition `number`, the same for every seed and epoch."""
        if self.partitions == 1:
            return torch.arange(self.samples)
        scattered = torch.randperm(self.samples, generator=generator(SPLIT_SEED, self.samples))
        return scattered.tensor_split(self.partitions)[number]

    def batches(self, epoch: int) -> list[Tensor]:
        """Sample indices of every global batch of the epoch, in order; the last of a partition may be smaller."""
        result: list[Tensor] = []
        for number in self.visited(epoch):
            held = self.partition(number)
            if self.shuffled:
                held = held[torch.randperm(len(held), generator=generator(self.seed, epoch, number))]
            result.extend(held.split(self.batch_size))
        return result

    def visited(self, epoch: int) -> list[int]:
        """The epoch's partitions, in order."""
        begun = self.begun.get(epoch, [])
        return [*begun, *(number for number in self._planned(epoch) if number not in begun)]

    def _planned(self, epoch: int) -> Sequence[int]:
        order = self.partition_order
        if order is None:
            return range(self.partitions)
        planned = order[epoch % len(order)]
        return cast(Sequence[int], order if isinstance(planned, int) else planned)

    def ends(self, epoch: int) -> list[int]:
        """Optimizer steps of the epoch up to the end of each of its partitions, in order."""
        usual, larger = divmod(self.samples, self.partitions)
        sizes = [usual + (number < larger) for number in self.visited(epoch)]
        return list(accumulate(-(-size // self.batch_size) for size in sizes))

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.ends(0)[-1]
