"""Random erasing of a batch."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .checks import positive_range, probability
from .draws import Draws, between, hashed, uniform

_TRIES = 10


class RandomErasing:
    """Fills a rectangle of random area, shape and place (Z. Zhong et al., Random erasing data augmentation, AAAI 2020).

    A rectangle has the area U(scale) times the image's, and height / width = exp(U(log ratio)); the first of ten that
    fits inside is taken, as torchvision does, else nothing is erased.

    Args:
        p: probability that an image is changed.
        scale: smallest and largest part of the image's area.
        ratio: smallest and largest height / width.
        fill: mean (the dataset's of each channel) | noise (a random value for each pixel and channel).

    Raises:
        ValueError: a probability outside 0..1, or a range that is none.
    """

    def __init__(
        self,
        p: float = 0.25,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        fill: Literal["mean", "noise"] = "mean",
    ) -> None:
        self.p = probability("p", p)
        self.scale = positive_range("scale", scale)
        self.ratio = positive_range("ratio", ratio)
        self.fill = fill

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        height, width = images.shape[2:]
        drawn = uniform(draws.keys, 3 + 2 * _TRIES)
        area = height * width * between(drawn[:, 3 : 3 + _TRIES], *self.scale)
        aspect = torch.exp(between(drawn[:, 3 + _TRIES :], *map(math.log, self.ratio)))
        rows, columns = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
        fits = (rows < height) & (columns < width)
        first = fits.int().argmax(1, keepdim=True)
        rows, columns, fits = (each.gather(1, first) for each in (rows, columns, fits))
        top = (drawn[:, 1:2] * (height - rows + 1)).floor()
        left = (drawn[:, 2:3] * (width - columns + 1)).floor()
        inside = _within(height, top, rows)[:, :, None] & _within(width, left, columns)[:, None, :]
        erased = inside & fits[:, :, None] & (drawn[:, :1, None] < self.p)
        filling = draws.mean if self.fill == "mean" else self._noise(images, draws.keys)
        return torch.where(erased[:, None], filling.to(images.dtype), images), labels

    @staticmethod
    def _noise(images: Tensor, keys: Tensor) -> Tensor:
        """A number from 0 to 1 for each value of the images."""
        places = torch.arange(images[0].numel(), device=images.device).view(images.shape[1:])
        bits = hashed(hashed(keys ^ 1)[:, None, None, None] + places)
        return ((bits >> 40) & (2**24 - 1)).to(torch.float32) * 2.0**-24


def _within(side: int, first: Tensor, count: Tensor) -> Tensor:
    """Which places of a side are among `count` from `first` on: (batch, side)."""
    places = torch.arange(side, device=first.device)
    return (places >= first) & (places < first + count)
