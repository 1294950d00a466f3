"""Mirroring and shifts of a batch."""

from typing import Literal

import torch
from torch import Tensor

from .checks import not_negative, probability
from .draws import Draws, hashed, uniform


class RandomFlip:
    """Mirrors images.

    Args:
        p: probability that an image is mirrored; with `alternating` 0.5 alone.
        alternating: the draw of the first epoch decides: an image is mirrored in every second epoch, so that two epochs
            show both sides (K. Jordan, 94% on CIFAR-10 in 3.29 seconds on a single GPU, arXiv 2404.00498, section 3.6).

    Raises:
        ValueError: a probability outside 0..1, or another than 0.5 together with `alternating`.
    """

    def __init__(self, p: float = 0.5, alternating: bool = False) -> None:
        self.p = probability("p", p)
        self.alternating = alternating
        if alternating and p != 0.5:
            raise ValueError(f"p={p} must be 0.5, as alternating mirrors every image in half of the epochs")

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Mirrored images, the same labels."""
        if self.alternating:
            flips = (hashed(draws.sample_keys) + draws.epoch) & 1 == 1
        else:
            flips = uniform(draws.keys, 1)[:, 0] < self.p
        return torch.where(flips[:, None, None, None], images.flip(3), images), labels


class RandomShift:
    """Shifts images by whole pixels, as a random crop out of the padded image does: C. Lee et al., Deeply-supervised
    nets, AISTATS 2015. All (2 padding + 1)^2 shifts are equally likely.

    Args:
        padding: largest shift in pixels, less than the image's sides if `mode` is reflect.
        mode: what enters at the border: zeros | reflect (the image mirrored at its outermost pixels).

    Raises:
        ValueError: `padding` is negative.
    """

    def __init__(self, padding: int = 4, mode: Literal["zeros", "reflect"] = "zeros") -> None:
        not_negative("padding", padding)
        self.padding = padding
        self.mode = mode

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Shifted images, the same labels.

        Raises:
            ValueError: reflected images are not larger than the padding.
        """
        count, channels, height, width = images.shape
        if self.mode == "reflect" and self.padding >= min(height, width):
            raise ValueError(f"padding={self.padding} must be less than the {min(height, width)} pixels of an image")
        shifts = (uniform(draws.keys, 2) * (2 * self.padding + 1)).long() - self.padding
        rows, inside_rows = self._sources(height, shifts[:, :1])
        columns, inside_columns = self._sources(width, shifts[:, 1:])
        # one number for each place: indexing by rows and columns takes seven times as long on a CPU
        places = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
        shifted = images.reshape(count, channels, -1).gather(2, places).view(count, channels, height, width)
        if self.mode == "zeros":
            shifted *= inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
        return shifted, labels

    def _sources(self, side: int, shift: Tensor) -> tuple[Tensor, Tensor]:
        """The place that each pixel of a side comes from, (batch, side), and whether it is inside of the image."""
        wanted = torch.arange(side, device=shift.device) + shift
        if self.mode == "zeros":
            return wanted.clamp(0, side - 1), (wanted >= 0) & (wanted < side)
        reflected = wanted.abs()
        return (side - 1) - ((side - 1) - reflected).abs(), reflected >= 0
