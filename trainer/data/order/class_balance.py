"""Sampling by classes: `dataset.sampling`."""

from collections.abc import Sequence

import torch
from torch import Tensor

EXPONENTS = {"class_balanced": 0.0, "square_root": 0.5}
"""q of Kang et al.; `instance_balanced`, each sample once, would be 1."""


class ClassSampling:
    """Balanced draws, as many as there are samples, the classes in proportion to (their number of samples)^q.

    Kang et al. 2020 (arXiv 1910.09217), eq. 1. A class that is drawn more often than it has samples is passed over
    several times, each time in another order and whole, before a sample is drawn again.

    Args:
        classes: (samples,), class of each.
        exponent: q.
    """

    def __init__(self, classes: Tensor, exponent: float):
        self._classes, self._exponent = classes, exponent

    def order(self, held: Tensor, draw: torch.Generator) -> Tensor:
        """Draws of the samples `held`, in random order: sample + number of samples in all x pass over its class."""
        found, counts = self._classes[held].unique(return_counts=True)
        by_class = held[self._classes[held].argsort(stable=True)].split(counts.tolist())
        sequence = torch.randperm(len(found), generator=draw)
        weights = counts[sequence].double() ** self._exponent
        drawn: list[Tensor] = []
        for number, share in zip(sequence.tolist(), _whole_shares(len(held), weights), strict=True):
            members = by_class[number]
            passes = range(-(-share // len(members)))
            each = [self._pass(members, count, draw) for count in passes]
            drawn += [torch.cat(each)[:share]] if each else []
        draws = torch.cat(drawn)
        return draws[torch.randperm(len(draws), generator=draw)]

    def _pass(self, members: Tensor, count: int, draw: torch.Generator) -> Tensor:
        return members[torch.randperm(len(members), generator=draw)] + count * len(self._classes)


def _whole_shares(total: int, weights: Tensor) -> Sequence[int]:
    """Whole numbers in proportion to the weights, each rounded up or down, that sum to `total`."""
    ends = (weights.cumsum(0) / weights.sum() * total).round().long()
    return ends.diff(prepend=ends.new_zeros(1)).tolist()
