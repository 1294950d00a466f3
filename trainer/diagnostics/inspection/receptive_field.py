"""Receptive fields by experiment: which pixels reach a feature map."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .forward_trace import ForwardTrace

_CUTS = 32
"""Most places along a side at which the image is cut."""


class Box(NamedTuple):
    """Pixels [top, bottom) x [left, right)."""

    top: int
    bottom: int
    left: int
    right: int


class ReceptiveFields:
    """Smallest boxes that hold all pixels on which a position of a layer depends, by NaN, which every sum passes on.

    Rows (columns) before a cut are NaN, then those from a cut on; a position that becomes NaN depends on one of them.
    Of images over 32 pixels a side the cuts are some pixels apart, and boxes are that much larger.

    Args:
        image_shape: channels, height, width.
    """

    @torch.no_grad()
    def __init__(self, network: nn.Module, image_shape: tuple[int, ...], layer: str, device: torch.device):
        blank = torch.zeros(image_shape, device=device)
        self._rows = _reaches(network, blank, layer, 0)
        self._columns = _reaches(network, blank, layer, 1)

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width of the largest box of the layer."""
        rows, columns = (max(end - begin for begin, end in found) for found in (self._rows, self._columns))
        return rows, columns

    def box(self, row: int, column: int) -> Box:
        """Receptive field of the position in row and column of a map."""
        return Box(*self._rows[row], *self._columns[column])


def _reaches(network: nn.Module, blank: Tensor, layer: str, side: int) -> list[tuple[int, int]]:
    """First pixel, and the one behind the last, along height (0) or width (1) for each place of the map there."""
    pixels = blank.shape[1 + side]
    cuts = [*range(0, pixels, -(-pixels // _CUTS)), pixels]
    before = torch.stack([_spoil_images(blank, side, 0, cut) for cut in cuts])
    behind = torch.stack([_spoil_images(blank, side, cut, pixels) for cut in cuts])
    begins = _reached_places(network, before, layer, side).sum(0)  # of the cuts, the last ones reach it
    ends = _reached_places(network, behind, layer, side).sum(0)  # of the cuts, the first ones reach it
    found: list[tuple[int, int]] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        reached = begin > 0 and end > 0
        found.append((cuts[len(cuts) - begin - 1], cuts[end]) if reached else (0, pixels))
    return found


def _spoil_images(blank: Tensor, side: int, begin: int, end: int) -> Tensor:
    image = blank.clone()
    image.narrow(1 + side, begin, end - begin).fill_(float("nan"))
    return image


def _reached_places(network: nn.Module, images: Tensor, layer: str, side: int) -> Tensor:
    """Bool (images, places along the side): whether a NaN has come there."""
    with ForwardTrace(network, {layer}) as trace:
        network(images)
    return trace.maps[layer].isnan().any(1).any(2 - side)
