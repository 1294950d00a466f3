"""Which training samples are the validation split of data that has none: the same for every seed and machine."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...base.rng import generator
from ...core import declarations

SPLIT_SEED = 0
"""Validation samples and partitions are the same for every seed, so that runs can be compared."""


class HeldOut(NamedTuple):
    """The samples that are held out."""

    indices: list[int]
    """Ascending."""
    by_name: bool
    """Whether the samples' names chose them in each class: else numbers drawn for all samples together."""


def held_out_samples(dataset: Any, fraction: float) -> HeldOut:
    """A fraction of a dataset."""
    hashes = declarations.of_dataset(dataset).name_hashes if fraction > 0 else None
    if hashes is not None:
        return HeldOut(np.flatnonzero(_by_name(np.asarray(hashes), _classes(dataset), fraction)).tolist(), True)
    number = round(len(dataset) * fraction)
    return HeldOut(sorted(torch.randperm(len(dataset), generator=generator(SPLIT_SEED)).tolist()[:number]), False)


def _by_name(hashes: NDArray[np.uint64], classes: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Whether a sample is held out: [N].

    A sample's own hash decides, so an added one moves no other. Where a class of two or more would lose all training or
    validation samples by that, the one whose hash comes next changes sides.
    """
    held = hashes < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
    order = np.lexsort((hashes, classes))
    firsts = np.flatnonzero(np.diff(classes[order], prepend=-1))
    ends = np.append(firsts[1:], len(order))
    for lowest, highest, samples in zip(order[firsts], order[ends - 1], ends - firsts, strict=True):
        if samples > 1:
            held[lowest] = True
        held[highest] = False
    return held


def _classes(dataset: Any) -> NDArray[np.int64]:
    """Class of each sample; 0 of all where a sample has several: sets of classes are too many and too small."""
    if declarations.of_dataset(dataset).multi_label:
        return np.zeros(len(dataset), np.int64)
    return np.asarray(dataset.labels, np.int64)
