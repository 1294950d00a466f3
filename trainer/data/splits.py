"""Splits of a dataset, and reading and collating of their samples."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..base.open_files import is_lack
from ..base.rng import seed_host
from ..config.faults import build_checked
from ..config.schema import DatasetConfig
from ..core import declarations
from ..core.protocols import Augmentation, Box, Dataset, Label
from .order.held_out import held_out_samples
from .view_reader import one_thread

Sample = TypeVar("Sample")


class Reader(Generic[Sample]):
    """Reads samples of one split, and names those that cannot be read.

    Args:
        read: the sample of a dataset by its index and key: one of the functions below, or a `ViewReader`.
        change: augments a sample by its key.
        seeded: whether what is read may draw from the process's generators: each sample's draws are those of its key.
        read_into: as `read`, with memory for the sample's images, which may be put there.
    """

    def __init__(
        self,
        dataset: Dataset,
        read: Callable[[Dataset, int, int], Sample],
        replace_bad: bool,
        change: Callable[[Sample, int], Sample] | None = None,
        seeded: bool = False,
        read_into: Callable[[Dataset, int, int, Tensor], Sample] | None = None,
    ):
        self.dataset = dataset
        self.read = read
        self.read_into = read_into
        self.replace_bad = replace_bad
        self.change = change
        self.seeded = seeded

    def __getitems__(self, wanted: Sequence[tuple[int, int]]) -> tuple[list[Sample], list[str]]:
        """Samples of (index, key) pairs, and the errors of unreadable ones.

        In training an unreadable sample is replaced by the next readable one, which keeps shapes; in evaluation it is
        left out, so that no sample counts twice.
        """
        problems: list[str] = []
        return list(self.samples(wanted, problems)), problems

    def samples(
        self, wanted: Sequence[tuple[int, int]], problems: list[str], rooms: Sequence[Tensor | None] | None = None
    ) -> Iterator[Sample]:
        """The samples that `__getitems__` gives, one after another.

        Args:
            problems: takes the errors.
            rooms: memory for the images of each sample, which may be put there.
        """
        for number, (index, key) in enumerate(wanted):
            if self.seeded:
                seed_host(key)
            room = None if rooms is None else rooms[number]
            sample = self._read(index, key, problems, room)
            if sample is not None:
                yield sample if self.change is None else self.change(sample, key)

    def _read(self, index: int, key: int, problems: list[str], room: Tensor | None) -> Sample | None:
        for offset in range(len(self.dataset) if self.replace_bad else 1):
            try:
                at = (index + offset) % len(self.dataset)
                if room is None or self.read_into is None:
                    return self.read(self.dataset, at, key)
                return self.read_into(self.dataset, at, key, room)
            except (OSError, ValueError) as error:
                if is_lack(error):  # the sample may be good
                    raise
                problems.append(str(error))
        return None


def plain_sample(dataset: Dataset, index: int, key: int) -> tuple[Tensor, Label]:
    """A sample as it is."""
    return dataset[index]


def evaluation_sample(dataset: Dataset, index: int, key: int) -> tuple[Tensor, Label]:
    """A sample as evaluation sees it."""
    read = declarations.of_dataset(dataset).evaluation_sample
    if read is None:
        return dataset[index]
    with one_thread():
        return read(index)


def no_labels(dataset: Any, samples: int) -> Tensor:
    """Labels of a batch, all 0: int64 (samples,), or float32 (samples, classes) of several classes."""
    several = declarations.of_dataset(dataset).multi_label
    return torch.zeros(samples, dataset.classes) if several else torch.zeros(samples, dtype=torch.int64)


class ImageAugmentation:
    """Changes samples by an augmentation of single images."""

    def __init__(self, augment: Augmentation):
        self.augment = augment

    def __call__(self, sample: tuple[Tensor, Label], key: int) -> tuple[Tensor, Label]:
        image, label = sample
        return self.augment(image, key), label


class Subset:
    """Some samples of a dataset, renumbered from 0.

    Attributes:
        renumbers: it reads by nothing but its dataset, so it may be read as that may.
    """

    renumbers = True

    def __init__(self, dataset: Dataset, indices: Sequence[int]):
        self.dataset = dataset
        self.indices = indices
        self.classes = dataset.classes
        self.image_shape = dataset.image_shape
        self.splits = dataset.splits
        optional = declarations.of_dataset(dataset)
        self.multi_label = bool(optional.multi_label)
        if optional.crops is not None:
            self.crops = self._crops
        if optional.crops_into is not None:
            self.crops_into = self._crops_into
        if optional.evaluation_sample is not None:
            self.evaluation_sample = self._evaluation_sample
        if optional.evaluation_views is not None:
            self.evaluation_views = self._evaluation_views
        if optional.read_ahead is not None:
            self.read_ahead = self._read_ahead
        if optional.batch is not None:
            self._numbers = torch.tensor(indices)
            self.batch = self._batch

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Label]:
        return self.dataset[self.indices[index]]

    def _crops(
        self, index: int, boxes: Callable[[int, int], Sequence[Box]], size: tuple[int, int]
    ) -> tuple[Tensor, Label]:
        return self.dataset.crops(self.indices[index], boxes, size)  # pyright: ignore[reportAttributeAccessIssue]

    def _crops_into(self, index: int, boxes: Callable[[int, int], Sequence[Box]], room: Tensor) -> tuple[Tensor, Label]:
        return self.dataset.crops_into(self.indices[index], boxes, room)  # pyright: ignore[reportAttributeAccessIssue]

    def _evaluation_sample(self, index: int) -> tuple[Tensor, Label]:
        return self.dataset.evaluation_sample(self.indices[index])  # pyright: ignore[reportAttributeAccessIssue]

    def _evaluation_views(self, index: int, crops: int, scales: Sequence[int]) -> tuple[Tensor, Label]:
        return self.dataset.evaluation_views(self.indices[index], crops, scales)  # pyright: ignore[reportAttributeAccessIssue]

    def _read_ahead(self, first: int, end: int) -> None:
        self.dataset.read_ahead(self.indices[first], self.indices[end - 1] + 1)  # pyright: ignore[reportAttributeAccessIssue]

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.dataset.batch(self._numbers[indices])  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Splits:
    """A dataset divided by its config."""

    whole: Dataset
    """The dataset's training samples, including held-out validation samples."""
    train: Dataset
    val: Dataset | None
    test: Dataset | None
    by_name: bool = False
    """Whether val is held out of each class of the training samples by their names."""
    cached: dict[Any, "Splits"] = field(default_factory=dict)
    """These splits as `dataset.cache` keeps them, once they are read."""

    @classmethod
    def of(cls, settings: DatasetConfig) -> "Splits":
        """Build the splits.

        Raises:
            OSError: the data is missing.
        """
        whole: Dataset = build_checked("dataset", settings, split="train")
        test: Dataset | None = build_checked("dataset", settings, split="test") if "test" in whole.splits else None
        if "val" in whole.splits:
            return cls(whole, whole, build_checked("dataset", settings, split="val"), test)
        held_out = held_out_samples(whole, settings.val_fraction)
        if not held_out.indices:
            return cls(whole, whole, None, test)
        others = sorted(set(range(len(whole))).difference(held_out.indices))
        return cls(whole, Subset(whole, others), Subset(whole, held_out.indices), test, held_out.by_name)
