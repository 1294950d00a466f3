"""Batches of Leyden's datasets, in an order that is a function of the config.

The order of an epoch is a function of (seed, epoch, partitions) alone: not of the number of workers, not of earlier
training. So a resumed run starts at any step without reading the samples before it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from ..base.log import log
from ..base.printable import printable
from ..base.rng import generator, mix
from ..base.signals import IgnoreStopSignals
from ..config.faults import built
from ..config.schema import Config, DatasetConfig
from ..core.batch import BadSamples, Part
from ..core.plain_values import all_gather_values
from ..core.protocols import Augmentation, Dataset
from ..core.trainer_view.loader import LoaderView
from .normalization import channel_statistics, scale_and_normalize
from .sample_order import PlannedPart, SampleOrder
from .splits import Reader, Splits, collate


class ImageData(LightningDataModule):
    """Training, validation and test samples of one dataset, in the order that the config fixes."""

    def __init__(
        self,
        config: Config,
        share: tuple[int, int],
        parts: int = 1,
        dummy_batches: bool = False,
        evaluation_share: tuple[int, int] | None = None,
        splits: Splits | None = None,
        pin_memory: bool = False,
    ):
        """Read the dataset and divide it.

        Args:
            share: this worker's share of every global batch: (index, count).
            evaluation_share: the same for evaluation; None: as in training.
            splits: the splits, if they exist already.
            pin_memory: read into page-locked memory, from which GPUs copy faster; creates a CUDA context.
            parts: number of parts into which the strategy divides each accumulated part.
            dummy_batches: a worker without a sample to evaluate computes a dummy batch, which is not counted.

        Raises:
            ValueError: the dataset is smaller than the config requires.
            OSError: the data is missing.
        """
        super().__init__()
        self.config = config
        self.settings: DatasetConfig = config.dataset
        self.share = share
        self.evaluation_share = share if evaluation_share is None else evaluation_share
        self.accumulate = config.trainer.accumulate_grad_batches * parts
        self.dummy_batches = dummy_batches
        self.pin_memory = pin_memory
        self.augment: Augmentation | None = built("augment", config.augment) if config.augment else None
        splits = splits or Splits.of(config.dataset)
        whole = splits.whole
        self.classes, self.image_shape = whole.classes, whole.image_shape
        self.class_names: Sequence[str] | None = getattr(whole, "class_names", None)
        self.synthetic = bool(getattr(whole, "synthetic", False))
        self.train_set, self.val_set, self.test_set = splits.train, splits.val, splits.test
        self.order = _sample_order(config, len(self.train_set))
        self.bad_samples: dict[str, None] = {}
        self._prepare = scale_and_normalize(whole)
        self._mean, self._std = channel_statistics(whole)
        self.channels_last = config.trainer.channels_last

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps

    def state_dict(self) -> dict[str, Any]:
        """State of the order of samples: the visited partitions of each epoch."""
        if self.order.partitions == 1:
            return {}
        begun = {epoch: list(order) for epoch, order in self.order.begun.items()}
        return {"samples": self.order.samples, "partition_orders": begun}

    @property
    def partition_orders(self) -> list[list[int]]:
        """Partition orders of the epochs in which they were decided during training."""
        return [list(order) for _, order in sorted(self.order.begun.items())]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order.begun.update(state_dict.get("partition_orders", {}))

    def train_parts(self, epoch: int, first_step: int = 0, end: int | None = None) -> Iterator[Part]:
        """This worker's parts of the epoch's steps, from `first_step` on, to its end or before step `end`.

        Raises:
            BadSamples: too many unreadable samples.
        """
        batches = self.order.batches(epoch)[first_step:end]
        return self._read(planned for batch in batches for planned in self._planned(epoch, batch, self.share[0]))

    def ticket_parts(self, epoch: int, numbers: Iterable[int], reads_ahead: bool) -> Iterator[Part]:
        """Parts of the steps of this worker's tickets: number n is share n % workers of batch n // workers.

        Args:
            reads_ahead: whether tickets may be drawn before earlier ones are trained.

        Raises:
            BadSamples: too many unreadable samples.
        """
        batches, workers = self.order.batches(epoch), self.share[1]

        def planned() -> Iterator[PlannedPart]:
            for number in numbers:
                rounds = (number // workers, (number + 1) // workers)
                for part in self._planned(epoch, batches[rounds[0]], number % workers):
                    yield part._replace(all_samples=part.samples, rounds=rounds)

        return self._read(planned(), None if reads_ahead else 0)

    def _planned(self, epoch: int, batch: Tensor, share: int) -> Iterator[PlannedPart]:
        """Parts of one share of a global batch."""
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part.tensor_split(self.share[1])[share]
            weight = len(mine) * self.share[1] / len(batch)
            # A worker without a sample computes another worker's with weight 0, as the collectives need it.
            read = (mine if len(mine) else part[:1]).tolist()
            pairs = [(index, mix(self.config.seed, epoch, index)) for index in read]
            yield PlannedPart(pairs, len(mine), len(part), weight, number == len(parts) - 1, None, len(batch))

    def _read(self, planned: Iterable[PlannedPart], num_workers: int | None = None) -> Iterator[Part]:
        waiting: deque[PlannedPart] = deque()

        def pairs() -> Iterator[list[tuple[int, int]]]:
            for part in planned:
                waiting.append(part)
                yield part.pairs

        for batch in self._loader(self.train_set, self.augment, pairs(), replace_bad=True, num_workers=num_workers):
            part = waiting.popleft()
            assert batch is not None
            keys = torch.tensor([key for _, key in part.pairs])
            yield Part(batch, *part[1:5], keys, part.rounds, part.step_samples)

    def samples_of(self, epoch: int, first_round: int, end_round: int) -> int:
        """Samples of the global batches [first_round, end_round) of an epoch."""
        return sum(len(batch) for batch in self.order.batches(epoch)[first_round:end_round])

    def evaluation_batches(self, split: str) -> Iterator[tuple[Any, int]]:
        """This worker's batches of a split and their sizes: every sample once over all workers.

        If the strategy needs every worker in every batch, a worker without samples gets a dummy batch of size 0.
        """
        dataset = self.val_set if split == "val" else self.test_set
        assert dataset is not None
        index_of_mine, count = self.evaluation_share
        shares = [
            [(index, 0) for index in batch.tensor_split(count)[index_of_mine].tolist()]
            for batch in torch.arange(len(dataset)).split(self.config.batch_size)
        ]
        read = self._loader(dataset, None, [share for share in shares if share], replace_bad=False)
        for share in shares:
            batch = next(read) if share else None
            if batch is not None:
                yield batch, len(batch[1])
            elif self.dummy_batches:
                yield (torch.zeros(1, *dataset.image_shape), torch.zeros(1, dtype=torch.int64)), 0

    def has(self, split: str) -> bool:
        return (self.val_set if split == "val" else self.test_set) is not None

    def loader_of(self, split: str) -> Any:
        """The loader of "train", "val" or "test" for `self.trainer`; None: no such split."""
        dataset = {"train": self.train_set, "val": self.val_set, "test": self.test_set}[split]
        if dataset is None:
            return None
        batches = self.batches_of(split)
        assert batches is not None
        return LoaderView(dataset, self.config.batch_size, batches)

    def batches_of(self, split: str) -> int | None:
        """Batches of an epoch of a split; a training step reads `accumulate` of them."""
        return self.order.steps * self.accumulate if split == "train" else self.evaluation_steps(split)

    def evaluation_steps(self, split: str) -> int:
        dataset = self.val_set if split == "val" else self.test_set
        return -(-len(dataset) // self.config.batch_size) if dataset is not None else 0

    def _loader(
        self,
        dataset: Dataset,
        augment: Augmentation | None,
        batches: Iterable[list[tuple[int, int]]],
        replace_bad: bool,
        num_workers: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor] | None]:
        loader = DataLoader(
            Reader(dataset, augment, replace_bad),  # pyright: ignore[reportArgumentType]  # torch needs only __getitems__
            batch_sampler=batches,  # pyright: ignore[reportArgumentType]  # pairs, not plain indices
            num_workers=self.settings.num_workers if num_workers is None else num_workers,
            collate_fn=collate,  # pyright: ignore[reportArgumentType]  # Reader gives more than a list
            # own generator: creating a loader must not advance the run's random numbers
            generator=generator(self.config.seed),
            pin_memory=self.pin_memory,
            worker_init_fn=IgnoreStopSignals(),
        )
        for batch, problems in loader:
            self._count_bad(problems)
            yield batch

    def _count_bad(self, problems: list[str]) -> None:
        for problem in map(printable, problems):
            if problem in self.bad_samples:
                continue
            self.bad_samples[problem] = None
            self._refuse_too_many(problem)
            log.warning("skipped an unreadable sample (%d so far): %s", len(self.bad_samples), problem)

    def _refuse_too_many(self, newest: str) -> None:
        if len(self.bad_samples) > self.settings.max_bad_samples:
            raise BadSamples(
                f"unreadable sample: {newest} ({len(self.bad_samples)} so far; "
                f"dataset.max_bad_samples={self.settings.max_bad_samples} are skipped)"
            )

    def share_bad_samples(self, fabric: Fabric) -> None:
        """Exchange the unreadable samples of all workers. Collective.

        Raises:
            BadSamples: too many over all workers.
        """
        if fabric.world_size > 1:
            gathered: list[list[str]] = all_gather_values(list(self.bad_samples))
            for problem in sorted({problem for problems in gathered for problem in problems}):
                self.bad_samples[problem] = None
                self._refuse_too_many(problem)

    def pixels(self, images: Tensor) -> Tensor:
        """Inverse of the normalization: images (batch, channels, height, width) as uint8 on the CPU."""
        values = images.detach().float().cpu().mul(self._std).add(self._mean)
        return values.mul(255.0).round().clamp(0.0, 255.0).to(torch.uint8)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale, normalize and lay out images on the device: one byte a value crosses the bus, not four."""
        images, labels = batch
        images = self._prepare(images)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels


def _sample_order(config: Config, samples: int) -> SampleOrder:
    partitions = config.dataset.partitions
    if partitions > samples:
        raise ValueError(f"dataset.partitions={partitions} is more than the {samples} training samples")
    shuffled = not config.trainer.overfit_batches
    order = config.dataset.partition_order
    return SampleOrder(samples, config.batch_size, config.seed, partitions, order, shuffled=shuffled)
