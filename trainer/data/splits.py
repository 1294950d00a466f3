"""Splits of a dataset, and reading and collating of their samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.open_files import is_lack
from ..base.rng import generator
from ..config.faults import built
from ..config.schema import DatasetConfig
from ..core.protocols import Augmentation, Dataset

SPLIT_SEED = 0
"""Validation samples and partitions are the same for every seed, so that runs can be compared."""


class Reader:
    """Reads samples of one split, augments them, and names those that cannot be read."""

    def __init__(self, dataset: Dataset, augment: Augmentation | None, replace_bad: bool):
        self.dataset = dataset
        self.augment = augment
        self.replace_bad = replace_bad

    def __getitems__(self, wanted: Sequence[tuple[int, int]]) -> tuple[list[tuple[Tensor, int]], list[str]]:
        """Samples of (index, key) pairs, and the errors of unreadable ones.

        In training an unreadable sample is replaced by the next readable one, which keeps shapes; in evaluation it is
        left out, so that no sample counts twice.
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
                if is_lack(error):  # the sample may be good
                    raise
                problems.append(str(error))
        return None


def collate(read: tuple[list[tuple[Tensor, int]], list[str]]) -> tuple[tuple[Tensor, Tensor] | None, list[str]]:
    """Stacks samples into (images, labels); None if every sample was unreadable."""
    samples, problems = read
    if not samples:
        return None, problems
    images, labels = zip(*samples, strict=True)
    return (torch.stack(images), torch.tensor(labels)), problems


class Subset:
    """Some samples of a dataset, renumbered from 0."""

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
    """A dataset divided by its config."""

    whole: Dataset
    """The dataset's training samples, including held-out validation samples."""
    train: Dataset
    val: Dataset | None
    test: Dataset | None

    @classmethod
    def of(cls, settings: DatasetConfig) -> "Splits":
        """Build the splits.

        Raises:
            OSError: the data is missing.
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
        scattered = torch.randperm(len(whole), generator=generator(SPLIT_SEED)).tolist()
        return Subset(whole, sorted(scattered[held_out:])), Subset(whole, sorted(scattered[:held_out]))
