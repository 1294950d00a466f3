"""Selectivity of single neurons (Le et al. 2012, section 4.3; Coates et al. 2013)."""

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 1 << 22
"""Values that are sorted at once."""


class Selectivity(NamedTuple):
    """Most selective neuron of each class: a threshold on it separates the class best from all others.

    Attributes:
        accuracy: mean of the share of the class's images above the threshold and of the other images below it; 0.5 for
            a neuron that knows nothing, however many classes there are.
        neuron: number of the neuron.
    """

    accuracy: Tensor
    neuron: Tensor


def best_thresholds(activations: Tensor, wanted: Tensor) -> Tensor:
    """Best accuracy of each neuron over all thresholds, (neurons,).

    Args:
        activations: (images, neurons).
        wanted: bool (images,), at least one of each kind: images that are to lie above the threshold.
    """
    return torch.cat([
        _best_thresholds(part, wanted) for part in activations.split(max(1, _CHUNK // len(activations)), dim=1)
    ])  # fmt: skip


def _best_thresholds(activations: Tensor, wanted: Tensor) -> Tensor:
    values, order = activations.sort(dim=0, descending=True)
    right = wanted[order]
    above = right.cumsum(0) / wanted.sum()
    wrong = (~right).cumsum(0) / (~wanted).sum()
    gain = above.double() - wrong.double()
    # between equal activations there is no threshold
    gain[:-1].masked_fill_(values[:-1] == values[1:], -1.0)
    return (1.0 + gain.amax(0).clamp(min=0.0)) / 2.0


def selectivity(activations: Tensor, labels: Tensor, classes: list[int]) -> Selectivity:
    """The most selective neuron of each class.

    Args:
        activations: (images, neurons).
        labels: (images,), numbers of classes.
        classes: each with some of the images, but not all.
    """
    found = [best_thresholds(activations, labels == label).max(0) for label in classes]
    return Selectivity(torch.stack([each.values for each in found]), torch.stack([each.indices for each in found]))
