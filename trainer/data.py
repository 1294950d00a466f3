"""The order of samples, who takes which, and the batches that come of it.

The order of an epoch is a function of (seed, epoch, partitions) and of nothing else: not of the number of workers, not
of what was trained before. A resumed run therefore starts at any step without reading what came before it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from .config import Config
from .config import Dataset as DatasetConfig
from .faults import built
from .log import log
from .protocols import Augmentation, Dataset
from .random_state import generator, mix
from .signals import LeftToTheWorker
from .targets import build
from .trainer_view import LoaderView

_SPLIT_SEED = 0
"""Validation samples and partitions are the same for every seed, so that runs can be compared."""


class Part(NamedTuple):
    """What one worker computes at a time: its share of a global batch, or of one of its accumulated parts."""

    batch: Any
    samples: int
    """Samples of this worker that count; 0 for a stand-in that only keeps the workers in step."""
    all_samples: int
    """Samples of all workers in this part."""
    weight: float
    """Factor on the mean loss of the part, such that the sum over parts and mean over workers is the global mean."""
    ends_step: bool
    keys: Tensor | None = None
    """One key for each sample of the batch, from (seed, epoch, sample): what dropout draws from."""
    rounds: tuple[int, int] | None = None
    """Rounds of the epoch that count as trained before and after this part's step, where workers go by their own
    clocks; None: one more after it."""


class Planned(NamedTuple):
    """A part whose samples are not read yet."""

    pairs: list[tuple[int, int]]
    """(index, key) of each sample."""
    samples: int
    all_samples: int
    weight: float
    ends_step: bool
    rounds: tuple[int, int] | None


class BadSamples(ValueError):
    """More unreadable samples than dataset.max_bad_samples allows."""


@dataclass(frozen=True)
class Order:
    """Which samples make each global batch of an epoch. Batches do not reach across partitions."""

    samples: int
    batch_size: int
    seed: int
    partitions: int = 1
    partition_order: Sequence[int] | Sequence[Sequence[int]] | None = None
    """The same for every epoch, or those of the epochs in turn."""
    begun: dict[int, list[int]] = field(default_factory=dict)
    """By the epoch: partitions in the order in which it came to them, where that is decided on the way."""
    shuffled: bool = True
    """Whether each epoch has an order of its own; else all have that of the partitions (trainer.overfit_batches)."""

    def partition(self, number: int) -> Tensor:
        """Sample indices that partition `number` holds, the same for every seed and epoch."""
        if self.partitions == 1:
            return torch.arange(self.samples)
        scattered = torch.randperm(self.samples, generator=generator(_SPLIT_SEED, self.samples))
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
        """Optimizer steps of the epoch that are done when each of its partitions is, in order."""
        usual, larger = divmod(self.samples, self.partitions)
        sizes = [usual + (number < larger) for number in self.visited(epoch)]
        return list(accumulate(-(-size // self.batch_size) for size in sizes))

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.ends(0)[-1]


class Reader:
    """Reads samples of one split, augments them, and names those that cannot be read."""

    def __init__(self, dataset: Dataset, augment: Augmentation | None, replace_bad: bool):
        self.dataset = dataset
        self.augment = augment
        self.replace_bad = replace_bad

    def __getitems__(self, wanted: Sequence[tuple[int, int]]) -> tuple[list[tuple[Tensor, int]], list[str]]:
        """Samples of (index, key) pairs, and what was wrong with those that could not be read.

        In training an unreadable sample is replaced by the next readable one, so that shapes stay; in evaluation it
        is left out, so that no sample counts twice.
        """
        samples: list[tuple[Tensor, int]] = []
        problems: list[str] = []
        for index, key in wanted:
            sample = self._read(index, problems)
            if sample is None:
                continue
            image, label = sample
            samples.append((image if self.augment is None else self.augment(image, key), label))
        return samples, problems

    def _read(self, index: int, problems: list[str]) -> tuple[Tensor, int] | None:
        for offset in range(len(self.dataset) if self.replace_bad else 1):
            try:
                return self.dataset[(index + offset) % len(self.dataset)]
            except (OSError, ValueError) as error:
                problems.append(str(error))
        return None


def collate(read: tuple[list[tuple[Tensor, int]], list[str]]) -> tuple[tuple[Tensor, Tensor] | None, list[str]]:
    """Stacks samples into (images, labels); None where every sample was unreadable."""
    samples, problems = read
    if not samples:
        return None, problems
    images, labels = zip(*samples, strict=True)
    return (torch.stack(images), torch.tensor(labels)), problems


class Subset:
    """Some samples of a dataset, under the numbers 0, 1, 2, ..."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]):
        self.dataset = dataset
        self.indices = indices
        self.classes = dataset.classes
        self.image_shape = dataset.image_shape
        self.splits = dataset.splits

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.dataset[self.indices[index]]


@dataclass(frozen=True)
class Splits:
    """A dataset as its config divides it."""

    whole: Dataset
    """What it brings for training, validation samples that are held out included."""
    train: Dataset
    val: Dataset | None
    test: Dataset | None

    @classmethod
    def of(cls, settings: DatasetConfig) -> "Splits":
        """
        Raises:
            OSError: the data is not there.
        """
        whole: Dataset = built("dataset", settings, split="train")
        train, val = cls._held_out(settings, whole)
        return cls(whole, train, val, built("dataset", settings, split="test") if "test" in whole.splits else None)

    @staticmethod
    def _held_out(settings: DatasetConfig, whole: Dataset) -> tuple[Dataset, Dataset | None]:
        if "val" in whole.splits:
            return whole, built("dataset", settings, split="val")
        held_out = round(len(whole) * settings.val_fraction)
        if held_out == 0:
            return whole, None
        scattered = torch.randperm(len(whole), generator=generator(_SPLIT_SEED)).tolist()
        return Subset(whole, sorted(scattered[held_out:])), Subset(whole, sorted(scattered[:held_out]))


class ImageData(LightningDataModule):
    """Training, validation and test samples of one dataset, in the order that the config fixes."""

    def __init__(
        self,
        config: Config,
        share: tuple[int, int],
        parts: int = 1,
        stand_in: bool = False,
        evaluation_share: tuple[int, int] | None = None,
        splits: Splits | None = None,
        pin_memory: bool = False,
    ):
        """
        Args:
            share: which part of every global batch this worker takes, and of how many.
            evaluation_share: the same of what is evaluated; None: as in training.
            splits: where they are made already.
            pin_memory: read into page-locked memory, from which a GPU copies; it takes a context of CUDA.
            parts: into how many parts the strategy cuts each accumulated part again.
            stand_in: a worker without a sample to evaluate computes a made-up one, which counts nowhere.

        Raises:
            ValueError: the set is smaller than what the config wants of it.
            OSError: the data is not there.
        """
        super().__init__()
        self.config = config
        self.settings: DatasetConfig = config.dataset
        self.share = share
        self.evaluation_share = share if evaluation_share is None else evaluation_share
        self.accumulate = config.trainer.accumulate_grad_batches * parts
        self.stand_in = stand_in
        self.pin_memory = pin_memory
        self.augment: Augmentation | None = build(config.augment) if config.augment else None
        splits = splits or Splits.of(config.dataset)
        whole = splits.whole
        self.classes, self.image_shape = whole.classes, whole.image_shape
        self.synthetic = bool(getattr(whole, "synthetic", False))
        self.train_set, self.val_set, self.test_set = splits.train, splits.val, splits.test
        self.order = Order(
            len(self.train_set),
            config.batch_size,
            config.seed,
            self.settings.partitions,
            self.settings.partition_order,
            shuffled=not config.trainer.overfit_batches,
        )
        if self.settings.partitions > len(self.train_set):
            raise ValueError(
                f"dataset.partitions={self.settings.partitions} is more than the {len(self.train_set)} training samples"
            )
        self.bad_samples: dict[str, None] = {}
        self.class_names: Sequence[str] | None = getattr(whole, "class_names", None)
        self._prepare = scale_and_normalize(whole)
        self._mean, self._std = channel_statistics(whole)
        self.channels_last = config.trainer.channels_last

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to know of the order of samples: the partitions that each epoch has come to."""
        if self.order.partitions == 1:
            return {}
        begun = {epoch: list(order) for epoch, order in self.order.begun.items()}
        return {"samples": self.order.samples, "partition_orders": begun}

    @property
    def partition_orders(self) -> list[list[int]]:
        """Of every epoch that came to its partitions in an order found on the way."""
        return [list(order) for _, order in sorted(self.order.begun.items())]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order.begun.update(state_dict.get("partition_orders", {}))

    def train_parts(self, epoch: int, first_step: int = 0, end: int | None = None) -> Iterator[Part]:
        """This worker's parts of the epoch's steps, from `first_step` on, to its end or before step `end`.

        Raises:
            BadSamples: too many samples cannot be read.
        """
        batches = self.order.batches(epoch)[first_step:end]
        return self._read(planned for batch in batches for planned in self._planned(epoch, batch, self.share[0]))

    def ticket_parts(self, epoch: int, numbers: Iterable[int], reads_ahead: bool) -> Iterator[Part]:
        """The parts of the steps that this worker's tickets name: number n is share n % workers of batch n // workers.

        Args:
            reads_ahead: whether tickets may be drawn before the ones before are trained.

        Raises:
            BadSamples: too many samples cannot be read.
        """
        batches, workers = self.order.batches(epoch), self.share[1]

        def planned() -> Iterator[Planned]:
            for number in numbers:
                rounds = (number // workers, (number + 1) // workers)
                for part in self._planned(epoch, batches[rounds[0]], number % workers):
                    yield part._replace(all_samples=part.samples, rounds=rounds)

        return self._read(planned(), None if reads_ahead else 0)

    def _planned(self, epoch: int, batch: Tensor, share: int) -> Iterator[Planned]:
        """The parts of one share of a global batch."""
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part.tensor_split(self.share[1])[share]
            weight = len(mine) * self.share[1] / len(batch)
            # A worker without a sample computes somebody else's with weight 0: the collectives wait for it.
            read = (mine if len(mine) else part[:1]).tolist()
            pairs = [(index, mix(self.config.seed, epoch, index)) for index in read]
            yield Planned(pairs, len(mine), len(part), weight, number == len(parts) - 1, None)

    def _read(self, planned: Iterable[Planned], num_workers: int | None = None) -> Iterator[Part]:
        waiting: deque[Planned] = deque()

        def pairs() -> Iterator[list[tuple[int, int]]]:
            for part in planned:
                waiting.append(part)
                yield part.pairs

        for batch in self._loader(self.train_set, self.augment, pairs(), replace_bad=True, num_workers=num_workers):
            part = waiting.popleft()
            assert batch is not None
            keys = torch.tensor([key for _, key in part.pairs])
            yield Part(batch, part.samples, part.all_samples, part.weight, part.ends_step, keys, part.rounds)

    def samples_of(self, epoch: int, first_round: int, end_round: int) -> int:
        """Samples of the global batches [first_round, end_round) of an epoch."""
        return sum(len(batch) for batch in self.order.batches(epoch)[first_round:end_round])

    def evaluation_batches(self, split: str) -> Iterator[tuple[Any, int]]:
        """This worker's batches of a split and their sizes: every sample once over all workers.

        None is made up, but for a stand-in where the strategy needs every worker in every batch: its size is 0.
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
            elif self.stand_in:
                yield (torch.zeros(1, *dataset.image_shape), torch.zeros(1, dtype=torch.int64)), 0

    def has(self, split: str) -> bool:
        return (self.val_set if split == "val" else self.test_set) is not None

    def loader_of(self, split: str) -> Any:
        """Samples and sizes of "train", "val" or "test" as a module asks its trainer for them; None: no such split."""
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
            Reader(dataset, augment, replace_bad),  # pyright: ignore[reportArgumentType]  # torch asks for __getitems__ alone
            batch_sampler=batches,  # pyright: ignore[reportArgumentType]  # pairs, not plain indices
            num_workers=self.settings.num_workers if num_workers is None else num_workers,
            collate_fn=collate,  # pyright: ignore[reportArgumentType]  # Reader gives more than a list
            # a generator of its own: making the loader must not move the run's random numbers
            generator=generator(self.config.seed),
            pin_memory=self.pin_memory,
            worker_init_fn=LeftToTheWorker(),
        )
        for batch, problems in loader:
            self._count_bad(problems)
            yield batch

    def _count_bad(self, problems: list[str]) -> None:
        for problem in problems:
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
        """Every worker learns what the others could not read. All must call it.

        Raises:
            BadSamples: together there are too many.
        """
        if fabric.world_size > 1:
            gathered: list[Any] = [None] * fabric.world_size
            torch.distributed.all_gather_object(gathered, list(self.bad_samples))
            for problem in sorted({problem for problems in gathered for problem in problems}):
                self.bad_samples[problem] = None
                self._refuse_too_many(problem)

    def pixels(self, images: Tensor) -> Tensor:
        """Images as the network gets them, (batch, channels, height, width), back to uint8 on the CPU."""
        values = images.detach().float().cpu().mul(self._std).add(self._mean)
        return values.mul(255.0).round().clamp(0.0, 255.0).to(torch.uint8)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scales, normalizes and lays out images where they are computed: a byte a value crosses the bus, not four."""
        images, labels = batch
        images = self._prepare(images)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels


def scale_and_normalize(dataset: Dataset) -> Callable[[Tensor], Tensor]:
    """uint8 images (batch, channels, height, width) to float, normalized if the set says its mean and std."""
    mean, std = channel_statistics(dataset)

    def prepare(images: Tensor) -> Tensor:
        nonlocal mean, std
        if images.dtype is not torch.uint8:
            return images
        if mean.device != images.device:
            mean, std = mean.to(images.device), std.to(images.device)
        return images.float().div_(255.0).sub_(mean).div_(std)

    return prepare


def channel_statistics(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of values from 0 to 1, each (1, channels, 1, 1); 0 and 1 where the set has none."""
    channels = dataset.image_shape[0]
    mean = torch.tensor(getattr(dataset, "mean", [0.0] * channels)).view(1, -1, 1, 1)
    std = torch.tensor(getattr(dataset, "std", [1.0] * channels)).view(1, -1, 1, 1)
    return mean, std
