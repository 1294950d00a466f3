"""Order of samples: a function of seed, epoch and partitions, independent of the number of workers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ...base.rng import generator
from ...config.schema import Config
from ...core.protocols import Dataset
from .block_shuffle import BlockShuffle
from .class_balance import EXPONENTS, ClassSampling
from .partitioning import classes_of, equal_sizes, partitions_of, random_partitions


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
    """Partitions in the order of their visits by epoch, if decided during training."""
    shuffled: bool = True
    """Whether each epoch has its own order; else all have that of the partitions (trainer.overfit_batches)."""
    held: Sequence[Tensor] | None = None
    """Sample indices of each partition; None: random ones of equal sizes."""
    partition_sizes: Sequence[int] | None = None
    """Sizes of the partitions if `held` is not known; equal if None."""
    blocks: BlockShuffle | None = None
    """How the consecutive samples of a partition are shuffled; None: all of them at once."""
    sampling: ClassSampling | None = None
    """How often each class is drawn; None: each sample once."""
    drop_last: bool = False
    """Whether the last batch of a partition is left out where it is smaller."""

    def restore(self, begun: Mapping[Any, list[int]]) -> None:
        """Take the orders of epochs of a checkpoint.

        Raises:
            ValueError: one is no order of partitions.
        """
        for epoch, order in begun.items():
            if type(epoch) is not int or len({*order} & {*range(self.partitions)}) != len(order):
                raise ValueError(f"partition_orders.{epoch} is no order of partitions")
            self.begun[epoch] = order

    def partition(self, number: int) -> Tensor:
        """Sample indices of partition `number`, the same for every seed and epoch."""
        if self.held is not None:
            return self.held[number]
        if self.partitions == 1:
            return torch.arange(self.samples)
        return random_partitions(self.samples, self.partitions)[number]

    def batches(self, epoch: int) -> list[Tensor]:
        """Draws of every global batch of the epoch, in order; the last of a partition may be smaller.

        A draw is a sample's index, or, where `sampling` draws a sample again, index + samples x draws before.
        """
        result: list[Tensor] = []
        for number in self.visited_partitions(epoch):
            order = self._order(epoch, number)
            result.extend(order.split(self.batch_size)[: self._batches(len(order))])
        return result

    def _batches(self, samples: int) -> int:
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    @property
    def smallest(self) -> int:
        """Samples of the smallest batch of an epoch."""
        last = [size % self.batch_size or self.batch_size for size in self.sizes]
        return self.batch_size if self.drop_last else min(last)

    def _order(self, epoch: int, number: int) -> Tensor:
        """Draws of a partition in the order of an epoch."""
        held, draw = self.partition(number), generator(self.seed, epoch, number)
        if not self.shuffled:
            return held
        if self.sampling is not None:
            return self.sampling.order(held, draw)
        if self.blocks is None:
            return held[torch.randperm(len(held), generator=draw)]
        return self.blocks.order(_range(held), draw)

    def buffers(self, epoch: int) -> Iterator[list[range]]:
        """The blocks of each buffer of an epoch, in the order in which they are read; none without blocks."""
        if self.blocks is None or not self.shuffled:
            return
        for number in self.visited_partitions(epoch):
            yield from self.blocks.buffers(_range(self.partition(number)), generator(self.seed, epoch, number))

    def visited_partitions(self, epoch: int) -> list[int]:
        """The epoch's partitions, in order."""
        begun = self.begun.get(epoch, [])
        return [*begun, *(number for number in self._planned_partitions(epoch) if number not in begun)]

    def _planned_partitions(self, epoch: int) -> Sequence[int]:
        order = self.partition_order
        if order is None:
            return range(self.partitions)
        planned = order[epoch % len(order)]
        return cast(Sequence[int], order if isinstance(planned, int) else planned)

    def ends(self, epoch: int) -> list[int]:
        """Optimizer steps of the epoch up to the end of each of its partitions, in order."""
        sizes = self.sizes
        return list(accumulate(self._batches(sizes[number]) for number in self.visited_partitions(epoch)))

    @property
    def sizes(self) -> list[int]:
        """Samples of each partition."""
        if self.held is not None:
            return [len(held) for held in self.held]
        return list(self.partition_sizes or equal_sizes(self.samples, self.partitions))

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.ends(0)[-1]


def sample_order(config: Config, dataset: Dataset) -> SampleOrder:
    """The order of a run's training samples.

    Raises:
        ValueError: there are fewer samples or files than partitions, the classes are not known, or `drop_last` leaves
            no batch.
    """
    settings = config.dataset
    held = partitions_of(dataset, settings.partitioning, settings.partitions)
    blocks = None
    if settings.shuffling == "blocks":
        blocks = BlockShuffle(settings.shuffle_block, settings.shuffle_buffer)
    sampling = None
    if settings.sampling != "instance_balanced":
        classes = classes_of(dataset, f"dataset.sampling={settings.sampling}", "dataset.sampling=instance_balanced")
        sampling = ClassSampling(classes, EXPONENTS[settings.sampling])
    order = SampleOrder(
        len(dataset), config.batch_size, config.seed, settings.partitions, settings.partition_order, held=held,
        shuffled=not config.trainer.overfit_batches, blocks=blocks, sampling=sampling, drop_last=settings.drop_last,
    )  # fmt: skip
    if settings.drop_last and min(order.sizes) < config.batch_size:
        part = "a partition" if settings.partitions > 1 else "the training set"
        text = f"leaves nothing of {part}, which has {min(order.sizes)} samples: a smaller batch_size"
        raise ValueError(f"dataset.drop_last=true with batch_size={config.batch_size} {text}")
    return order


def _range(held: Tensor) -> range:
    first, last = int(held[0]), int(held[-1])
    assert last - first + 1 == len(held), "only consecutive samples have blocks"
    return range(first, last + 1)
