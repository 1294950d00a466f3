"""The images that activate each feature map most."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")


class TopActivations:
    """The images with the largest activation of each map of a layer; an image counts once, at its largest activation.

    Args:
        count: images for each map.

    Attributes:
        values: (maps, found), the largest first.
        images, positions: (maps, found): number of the image, and position of its activation, row by row.
        shape: height and width of a map.
    """

    def __init__(self, count: int = 9):
        self._count = count
        self.values = torch.zeros(0, 0)
        self.images = self.positions = torch.zeros(0, 0, dtype=torch.int64)
        self.shape = (0, 0)

    def update(self, maps: Tensor, first: int) -> None:
        """Rank a batch (batch, maps, height, width), whose first image has number `first`."""
        values, positions = maps.detach().flatten(2).max(2)
        numbers = torch.arange(first, first + len(maps), device=maps.device)[:, None].expand_as(positions)
        found = [each.T.cpu() for each in (values.float(), numbers, positions)]
        if self.values.numel():
            kept = (self.values, self.images, self.positions)
            found = [torch.cat(pair, 1) for pair in zip(kept, found, strict=True)]
        best = found[0].topk(min(self._count, found[0].shape[1]), dim=1).indices
        self.values, self.images, self.positions = (each.gather(1, best) for each in found)
        self.shape = (maps.shape[2], maps.shape[3])

    def spread(self, count: int) -> list[int]:
        """Maps that some image activates, evenly spaced over the layer, `count` at most."""
        return evenly_spaced([number for number, images in enumerate(self.active) if images], count)

    @property
    def active(self) -> list[int]:
        """Number of images of each map that activate it: the first ones."""
        return (self.values > 0).sum(1).tolist()


def evenly_spaced(items: Sequence[_T], count: int) -> list[_T]:
    """`count` of the items, the last one among them."""
    count = min(count, len(items))
    return [items[round((number + 1) * len(items) / count) - 1] for number in range(count)]
