"""Batches of Leyden's datasets, in an order that is a function of the config.

The order of an epoch is a function of (seed, epoch, partitions) alone: not of the number of workers, not of earlier
training. So a resumed run starts at any step without reading the samples before it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from torch import Tensor
from typing_extensions import override

from ..base.log import log
from ..base.printable import printable
from ..base.rng import mix_each
from ..config.evaluation_data import evaluates_initial_weights, own_dataset
from ..config.evaluation_views import EvaluationViews
from ..config.faults import build_checked
from ..config.schema import Config, DatasetConfig, workers_on_node
from ..core import declarations
from ..core.batch import BadSamples, Part
from ..core.communication.plain_values import all_gather_values
from ..core.data_contract import DataContract
from ..core.trainer_view.loader import LoaderView
from .abilities import thread_safe
from .batch_augmentation import BatchAugmentation, mirror_images
from .batch_loading import BatchLoading, reads_by_threads
from .batch_reader import Pairs
from .batch_sources import BatchSources
from .cached_split import with_cache
from .contents.file_check import unreadable_files
from .contents.found import Found, count_samples
from .contents.named_outputs import named_outputs
from .normalization import Normalization
from .order.read_ahead import read_ahead_of, reader_ahead
from .order.sample_order import PlannedPart, sample_order
from .other_data import as_trained, splits_of_other
from .process_batches import Kind
from .splits import Splits, no_labels
from .threaded_batches import LoadedBatch


class ImageData(DataContract, LightningDataModule):
    """Training, validation and test samples of one dataset, in the order that the config fixes."""

    def __init__(
        self,
        config: Config,
        share: tuple[int, int],
        parts: int = 1,
        dummy_batches: bool = False,
        evaluation_share: tuple[int, int] | None = None,
        splits: Splits | None = None,
        device: torch.device | None = None,
    ):
        """Read the dataset and divide it.

        Args:
            share: this worker's share of every global batch: (index, count).
            evaluation_share: the same for evaluation; None: as in training.
            splits: the splits, if they exist already.
            device: of the run. For a GPU, batches are read into page-locked memory, which creates a CUDA context.
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
        self.pin_memory = device is not None and device.type == "cuda"
        self.augment: Any = build_checked("augment", config.augment) if config.augment else None  # in one part or two
        self._views = EvaluationViews.requested_views()
        own = own_dataset()
        read = splits or (splits_of_other if own or evaluates_initial_weights() else Splits.of)(config.dataset)
        self.order = sample_order(config, read.train)
        self._uncached = read
        self._read_ahead = read_ahead_of(read.train, self.order, config.trainer.max_epochs)
        splits = self._cache_splits(read, device)
        whole, optional = splits.whole, declarations.of_dataset(splits.whole)
        if self._views is not None:
            self._views.check(optional.crop, bool(optional.multi_label))
        self.image_shape: Sequence[int] = whole.image_shape  # pyright: ignore[reportIncompatibleVariableOverride]
        self.multi_label = bool(optional.multi_label)
        self.missed_classes = optional.missed_classes
        outputs = named_outputs(config, whole)
        self.class_names = optional.class_names if outputs is None else outputs.names
        self.classes: int = whole.classes if outputs is None else len(outputs.names)  # pyright: ignore[reportIncompatibleVariableOverride]
        self._outputs = None if outputs is None else outputs.of_classes
        self.synthetic = bool(optional.synthetic)
        self.train_set, self.val_set, self.test_set = splits.train, splits.val, splits.test
        self.bad_samples: dict[str, None] = {}
        self._normalization = Normalization(whole, None if own is None else as_trained(own, whole))
        self._augment_batch = self._batch_augmentation()
        self.channels_last = config.trainer.channels_last
        self.thread_safe = thread_safe(self.train_set, self.augment)
        self._seeded = not self.thread_safe and not reads_by_threads(self.settings, self.thread_safe)
        mirrors = device is None or device.type == "cpu"  # another mirrors faster, while the CPU decodes
        self._sources = BatchSources(splits, self.augment, self._views, self._seeded, mirrors)
        self._loading = BatchLoading(
            config.dataset, self._sources, self.thread_safe, config.seed, self.pin_memory, device
        )

    def _cache_splits(self, splits: Splits, device: torch.device | None) -> Splits:
        kind = self.settings.cache
        if kind == "none" or self._views is not None:  # several views are cut out of larger images
            return splits
        if (kind, device) not in splits.cached:
            splits.cached[kind, device] = with_cache(splits, kind, self.augment, device, workers_on_node(self.config))
        return splits.cached[kind, device]

    @cached_property
    def found(self) -> Found:
        """What was found in the data."""
        return count_samples(self._uncached, self.settings.val_fraction)

    @property
    def batch_and_most(self) -> tuple[int, int | None]:
        """Samples of a batch, and of the largest that there could be: batches do not cross partitions."""
        return self.config.batch_size, max(self.order.sizes)

    def close(self) -> None:
        """End the threads and processes that read. A later epoch starts them again."""
        self._loading.close()

    def _batch_augmentation(self) -> BatchAugmentation | None:
        if declarations.of_augmentation(self.augment).augment_batch is None:
            return None
        return BatchAugmentation(self.augment, self.config.seed, self.classes, self._normalization.mean)

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps

    def smallest_batch(self, batch_size: int) -> int:
        """Rows of the smallest batch that any worker would compute in an epoch, with global batches of this size."""
        part = max(1, replace(self.order, batch_size=batch_size).smallest // self.accumulate)
        return max(1, part // self.share[1]) * self.training_views

    @property
    @override
    def datamodule(self) -> LightningDataModule:
        return self

    @property
    @override
    def normalization(self) -> tuple[Tensor, Tensor]:
        return self._normalization.mean, self._normalization.std

    @property
    @override
    def training_views(self) -> int:
        views = declarations.of_augmentation(self.augment).views
        height, width = self.image_shape[-2:]
        return 1 if views is None else len(views((height, width), 0))

    def state_dict(self) -> dict[str, Any]:
        """State of the order of samples: the visited partitions of each epoch."""
        if self.order.partitions == 1:
            return {}
        begun = {epoch: list(order) for epoch, order in self.order.begun.items()}
        sizes = list(self.order.sizes)
        return {"samples": self.order.samples, "partition_sizes": sizes, "partition_orders": begun}

    @property
    def partition_orders(self) -> list[list[int]]:
        """Partition orders of the epochs in which they were decided during training."""
        return [list(order) for _, order in sorted(self.order.begun.items())]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order.restore(state_dict.get("partition_orders", {}))

    def train_parts(self, epoch: int, first_step: int = 0, end: int | None = None) -> Iterator[Part]:
        """This worker's parts of the epoch's steps, from `first_step` on, to its end or before step `end`.

        Raises:
            BadSamples: too many unreadable samples.
        """
        batches = self.order.batches(epoch)[:end]
        reached = reader_ahead(self._read_ahead, epoch, batches)

        def planned() -> Iterator[PlannedPart]:
            for step in range(first_step, len(batches)):
                reached(step)
                yield from self._plan_parts(epoch, batches[step], self.share[0])

        return self._read(epoch, planned())

    def ticket_parts(self, epoch: int, numbers: Iterable[int], reads_ahead: bool) -> Iterator[Part]:
        """Parts of the steps of this worker's tickets: number n is share n % workers of batch n // workers.

        Args:
            reads_ahead: whether tickets may be drawn before earlier ones are trained.

        Raises:
            BadSamples: too many unreadable samples.
        """
        batches, workers = self.order.batches(epoch), self.share[1]
        reached = reader_ahead(self._read_ahead, epoch, batches)

        def planned() -> Iterator[PlannedPart]:
            for number in numbers:
                rounds = (number // workers, (number + 1) // workers)
                reached(rounds[0])
                for part in self._plan_parts(epoch, batches[rounds[0]], number % workers):
                    yield part._replace(all_samples=part.samples, rounds=rounds)

        return self._read(epoch, planned(), reads_ahead)

    def _plan_parts(self, epoch: int, batch: Tensor, share: int) -> Iterator[PlannedPart]:
        """Parts of one share of a global batch."""
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part.tensor_split(self.share[1])[share]
            weight = len(mine) * self.share[1] / len(batch)
            # A worker without a sample computes another worker's with weight 0, as the collectives need it.
            read = (mine if len(mine) else part[:1]).tolist()
            yield PlannedPart(
                self.with_keys(read, epoch), len(mine), len(part), weight, number == len(parts) - 1, None, len(batch)
            )

    def with_keys(self, draws: Sequence[int], epoch: int) -> list[tuple[int, int]]:
        """Samples with their keys: a sample that is drawn again is augmented otherwise."""
        indices = [draw % self.order.samples for draw in draws]
        return list(zip(indices, mix_each((self.config.seed, epoch), draws), strict=True))

    def _read(self, epoch: int, planned: Iterable[PlannedPart], reads_ahead: bool = True) -> Iterator[Part]:
        waiting: deque[PlannedPart] = deque()

        def pairs() -> Iterator[list[tuple[int, int]]]:
            for part in planned:
                waiting.append(part)
                yield part.pairs

        for batch, keys, _ in self._load_batches(("train", epoch), pairs(), reads_ahead):
            part = waiting.popleft()
            assert batch is not None
            step_samples: int | None = part.step_samples
            if keys is None:
                keys = torch.tensor([key for _, key in part.pairs])
            elif batch[2].views != 1:
                # several rows a sample: a worker cannot tell the others' rows from the number of samples
                step_samples = None
            yield Part(
                batch, part.samples, part.all_samples, part.weight, part.ends_step, keys, part.rounds, step_samples
            )

    def augment_batch(self, indices: Sequence[int], epoch: int) -> tuple[Tensor, Tensor]:
        """Images and labels of training samples as the network gets them in an epoch.

        Raises:
            BadSamples: more are unreadable than `dataset.max_bad_samples`.
        """
        source = self._sources(("train", epoch))
        batch, problems = source.read(self.with_keys(indices, epoch))
        self._count_bad(problems)
        assert batch is not None
        return self.on_after_batch_transfer(batch, 0)

    @override
    def plain_images(self, most: int, most_values: int) -> Tensor:
        count = min(most, max(1, most_values // prod(self.image_shape)), len(self.train_set))
        stacked = torch.stack([self.train_set[index * len(self.train_set) // count][0] for index in range(count)])
        scaled = self._normalization.scale_images(stacked)
        return scaled if scaled is stacked else self._normalization.normalize(scaled)

    def samples_of(self, epoch: int, first_round: int, end_round: int) -> int:
        """Samples of the global batches [first_round, end_round) of an epoch."""
        return sum(len(batch) for batch in self.order.batches(epoch)[first_round:end_round])

    def evaluation_batches(self, split: str, most: int | None = None) -> Iterator[tuple[Any, int]]:
        """This worker's batches of a split and their sizes: every sample once over all workers.

        Args:
            most: of the split's first batches, unreadable ones included; None: all.

        If the strategy needs every worker in every batch, a worker without samples gets a dummy batch of size 0.
        """
        dataset = self.val_set if split == "val" else self.test_set
        assert dataset is not None
        index_of_mine, count = self.evaluation_share
        shares = [
            self._with_evaluation_keys(batch.tensor_split(count)[index_of_mine].tolist())
            for batch in torch.arange(len(dataset)).split(self.config.batch_size)[:most]
        ]
        read = self._load_batches((split, 0), [share for share in shares if share])
        for share in shares:
            batch = next(read).batch if share else None
            if batch is not None:
                yield batch, len(batch[1])
            elif self.dummy_batches:
                yield (torch.zeros(self.views, *dataset.image_shape), no_labels(dataset, 1)), 0

    def _with_evaluation_keys(self, indices: list[int]) -> list[tuple[int, int]]:
        """Samples with the keys of their draws, of epoch -1 in every epoch; 0: nothing draws."""
        keys = mix_each((self.config.seed, -1), indices) if self._seeded else [0] * len(indices)
        return list(zip(indices, keys, strict=True))

    @property
    @override
    def views(self) -> int:
        return 1 if self._views is None else self._views.per_image

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

    def _load_batches(self, kind: Kind, wanted: Iterable[Pairs], reads_ahead: bool = True) -> Iterator[LoadedBatch]:
        for loaded in self._loading.read(kind, wanted, reads_ahead):
            self._count_bad(loaded.problems)
            yield loaded

    def _count_bad(self, problems: list[str]) -> None:
        for problem in map(printable, problems):
            if problem not in self.bad_samples:
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

    def look_at_files(self, fabric: Fabric) -> None:
        """Look at size and header of all files. Collective.

        Raises:
            CannotStart: more are unreadable than `dataset.max_bad_samples`.
        """
        problems = unreadable_files(self._uncached, self.settings, fabric, self.config.worker_processes)
        if fabric.is_global_zero:
            self._count_bad(problems)
        self.bad_samples |= dict.fromkeys(problems)

    @override
    def pixels(self, images: Tensor) -> Tensor:
        values = images.detach().float().cpu().mul(self._normalization.std).add(self._normalization.mean)
        return values.mul(255.0).round().clamp(0.0, 255.0).to(torch.uint8)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment, scale, normalize and lay out images on the device: one byte a value crosses the bus, not four."""
        images, labels, *keys = batch
        if keys:
            images = mirror_images(images, keys[0].flips)
        unscaled = images.dtype is torch.uint8
        images = self._normalization.scale_images(images)
        if keys and self._augment_batch is not None:
            images, labels = self._augment_batch(images, labels, keys[0])
        if unscaled:
            images = self._normalization.normalize(images)
        if self._outputs is not None:
            labels = self._outputs.to(labels.device)[labels]
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout), labels
