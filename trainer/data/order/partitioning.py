"""Division of the training samples into fixed parts: `dataset.partitions`, `dataset.partitioning`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...base.rng import generator
from ...core import declarations
from ..abilities import class_name
from .held_out import SPLIT_SEED


def equal_sizes(samples: int, count: int) -> list[int]:
    """Sizes of `count` partitions that differ by at most one sample."""
    usual, larger = divmod(samples, count)
    return [usual + (number < larger) for number in range(count)]


def random_partitions(samples: int, count: int) -> Sequence[Tensor]:
    """Parts of one random order, the same for every seed."""
    return torch.randperm(samples, generator=generator(SPLIT_SEED, samples)).tensor_split(count)


def class_balanced_partitions(dataset: Any, count: int) -> Sequence[Tensor]:
    """Random parts in which the number of samples of a class differs by at most one.

    Raises:
        ValueError: the dataset does not tell the class of a sample that is not read.
    """
    classes = classes_of(dataset, "dataset.partitioning=class_balanced", "dataset.partitioning=random")
    scattered = torch.randperm(len(classes), generator=generator(SPLIT_SEED, len(classes)))
    by_class = scattered[classes[scattered].argsort(stable=True)]
    return [by_class[number::count] for number in range(count)]


def contiguous_partitions(dataset: Any, count: int) -> Sequence[Tensor]:
    """Consecutive samples; of a dataset in large files, whole files.

    Raises:
        ValueError: it has fewer files than partitions.
    """
    ends = _file_ends(dataset)
    if ends is None:
        return torch.arange(len(dataset)).tensor_split(count)
    if len(ends) < count:
        raise ValueError(
            f"dataset.partitioning=contiguous divides whole files, and {class_name(dataset)} has {len(ends)} "
            f"for {count} partitions: leyden prepare with a smaller shard_size, or dataset.partitioning=random"
        )
    cuts, place = [0], 0
    for number in range(1, count):
        wanted = number * len(dataset) / count
        left = range(place, len(ends) - (count - number))  # each partition gets a file
        place = min(left, key=lambda file: abs(ends[file] - wanted)) + 1
        cuts.append(ends[place - 1])
    return torch.arange(len(dataset)).tensor_split(cuts[1:])


def partitions_of(dataset: Any, kind: str, count: int) -> Sequence[Tensor] | None:
    """Indices of the samples of each partition; None: there is only one.

    Args:
        kind: random | class_balanced | contiguous.

    Raises:
        ValueError: the dataset has too few samples or files, or lacks what the kind needs.
    """
    if count > len(dataset):
        raise ValueError(f"dataset.partitions={count} is more than the {len(dataset)} training samples")
    if count == 1:
        return None
    if kind == "class_balanced":
        return class_balanced_partitions(dataset, count)
    return contiguous_partitions(dataset, count) if kind == "contiguous" else random_partitions(len(dataset), count)


def classes_of(dataset: Any, setting: str, remedy: str) -> Tensor:
    """Class, or number of the set of classes, of each sample, without reading it.

    Raises:
        ValueError: `setting` needs them, and the dataset does not tell them.
    """
    classes = declared_classes(dataset)
    if classes is None or classes.shape != (len(dataset),):
        text = f"{setting} needs the class of every sample (`labels`)"
        raise ValueError(f"{text}, which {class_name(dataset)} does not have: {remedy}")
    return classes


def declared_classes(dataset: Any) -> Tensor | None:
    """Class, or number of the set of classes, of each sample; None: the dataset does not declare them."""
    if declarations.of_dataset(dataset).renumbers:
        of_all = declared_classes(dataset.dataset)
        return None if of_all is None else of_all[torch.tensor(dataset.indices)]
    labels = declarations.of_dataset(dataset).labels
    return None if labels is None else torch.as_tensor(labels)


def _file_ends(dataset: Any) -> list[int] | None:
    """Samples up to the end of each file; None: a sample is a file, or all are in memory."""
    if declarations.of_dataset(dataset).renumbers:
        of_all = _file_ends(dataset.dataset)
        if of_all is None:
            return None
        ends = torch.searchsorted(torch.tensor(dataset.indices), torch.tensor(of_all)).unique()
        return [int(end) for end in ends if end > 0]
    ends = declarations.of_dataset(dataset).file_ends
    return None if ends is None else [int(end) for end in ends]
