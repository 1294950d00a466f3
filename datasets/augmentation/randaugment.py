"""RandAugment of a batch."""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from .checks import probability
from .color import blended, grey
from .draws import Draws, per_image, uniform
from .warps import pixel_grid, sampled

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "auto_contrast", "equalize",
)  # fmt: skip
_BINS = 30
"""The largest magnitude."""
_Layer = tuple[Tensor, Tensor]
"""Number of each image's operation, and a sign, 1 or -1: (batch,) each."""


class RandAugment:
    """Some operations for each image, all of one magnitude: E. Cubuk et al., RandAugment, NeurIPS 2020.

    The 14 operations and their ranges are torchvision's; shears are about the centre, other places are interpolated
    bilinearly, and what enters at the border has the dataset's mean colour. Every operation is computed for all images
    with a strength of its own, which is none where another was drawn: there is no loop over images.

    Args:
        operations: operations for each image, one after the other; each of the 14 is equally likely.
        magnitude: their strength, 0 to 30: at 30 a rotation by 30 degrees, a shear of 0.3, a shift by 45 %, factors of
            brightness, colour, contrast and sharpness of 0.1 or 1.9, 4 bits, every pixel inverted.
        p: probability that an operation is made.

    Raises:
        ValueError: fewer operations than 1, a magnitude outside 0..30, a probability outside 0..1.
    """

    def __init__(self, operations: int = 2, magnitude: float = 9, p: float = 1.0) -> None:
        if operations < 1:
            raise ValueError(f"operations={operations} must be at least 1")
        if not 0 <= magnitude <= _BINS:
            raise ValueError(f"magnitude={magnitude} must be at least 0 and at most {_BINS}")
        self.operations = operations
        self.strength = magnitude / _BINS
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        drawn = uniform(draws.keys, 3 * self.operations)
        for number in range(self.operations):
            made, operation, sign = drawn[:, 3 * number : 3 * number + 3].unbind(1)
            operation = torch.where(made < self.p, (operation * len(OPERATIONS)).floor(), 0.0)
            images = self.changed(images, (operation, torch.where(sign < 0.5, 1.0, -1.0)), draws.mean)
        return images, labels

    def changed(self, images: Tensor, layer: _Layer, mean: Tensor) -> Tensor:
        """The images after one operation each."""
        images = torch.where(_is(layer, "identity"), images, self._warped(images, layer, mean))
        images = self._blended(images, layer)
        bits = 8 - round(4 * self.strength)
        images = torch.where(_is(layer, "posterize"), posterized(images, bits), images)
        inverted = torch.where(images >= 1.0 - self.strength, 1.0 - images, images)
        images = torch.where(_is(layer, "solarize"), inverted, images)
        images = torch.where(_is(layer, "auto_contrast"), auto_contrast(images), images)
        return torch.where(_is(layer, "equalize"), equalized(images), images)

    def _warped(self, images: Tensor, layer: _Layer, mean: Tensor) -> Tensor:
        """Shears, shifts and rotations, as one map of places."""
        height, width = images.shape[2:]
        down, right = pixel_grid(images)
        strength = layer[1][:, None, None] * self.strength

        def drawn(name: str, most: float) -> Tensor:
            return torch.where(_is(layer, name)[:, 0], strength * most, 0.0)

        angle = drawn("rotate", math.radians(30))
        cos, sin = torch.cos(angle), torch.sin(angle)
        rows = down * cos - right * sin + right * drawn("shear_y", 0.3) + drawn("translate_y", 150 / 331 * height)
        columns = down * sin + right * cos + down * drawn("shear_x", 0.3) + drawn("translate_x", 150 / 331 * width)
        moves = (layer[0] >= 1) & (layer[0] <= 5)
        return torch.where(per_image(moves), sampled(images, rows, columns, mean), images)

    def _blended(self, images: Tensor, layer: _Layer) -> Tensor:
        """Brightness, colour, contrast and sharpness: as far from black, grey, mean grey, blurred as the factor
        says."""
        luma = grey(images)
        other = torch.where(_is(layer, "color"), luma, torch.zeros_like(images))
        other = torch.where(_is(layer, "contrast"), luma.mean((1, 2, 3), keepdim=True), other)
        other = torch.where(_is(layer, "sharpness"), smoothed(images), other)
        changed = blended(images, other, 1 + layer[1] * (0.9 * self.strength))
        return torch.where(per_image((layer[0] >= 6) & (layer[0] <= 9)), changed, images)


def _is(layer: _Layer, name: str) -> Tensor:
    """Which images have an operation: (batch, 1, 1, 1)."""
    return per_image(layer[0] == OPERATIONS.index(name))


def levels(images: Tensor) -> Tensor:
    """Values from 0 to 1 as whole numbers from 0 to 255, int64."""
    return (images * 255.0).round().long().clamp_(0, 255)


def posterized(images: Tensor, bits: int) -> Tensor:
    """Images with the first `bits` bits of their levels."""
    step = 2 ** (8 - bits)
    return (levels(images) // step * step) / 255.0


def smoothed(images: Tensor) -> Tensor:
    """Pillow's SMOOTH: the mean of 3 x 3 pixels, the middle one weighted five times; borders stay."""
    channels = images.shape[1]
    weights = torch.ones(3, 3, device=images.device)
    inner = weights * pad(torch.full((1, 1), 4.0, device=images.device), (1, 1, 1, 1)) + weights
    kernel = (inner / 13.0).expand(channels, 1, 3, 3)
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    middle = conv2d(images, kernel, groups=channels)
    return torch.cat([
        images[:, :, :1],
        torch.cat([images[:, :, 1:-1, :1], middle, images[:, :, 1:-1, -1:]], 3),
        images[:, :, -1:],
    ], 2)  # fmt: skip


def auto_contrast(images: Tensor) -> Tensor:
    """Each channel stretched from its own minimum and maximum to 0 and 1; one of a single value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high <= low
    return torch.where(flat, images, (images - low) / torch.where(flat, 1.0, high - low))


def equalized(images: Tensor) -> Tensor:
    """Histogram equalization of each channel over 256 levels, as in Pillow's ImageOps."""
    count, channels, height, width = images.shape
    place = levels(images).reshape(count * channels, height * width)
    histogram = torch.zeros(count * channels, 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(1, place, torch.ones_like(place))
    last = histogram.gather(1, place.amax(1, keepdim=True))
    step = (height * width - last) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp_min(1)).clamp_(0, 255)
    equal = (table.gather(1, place) / 255.0).reshape(images.shape)
    return torch.where((step == 0).view(count, channels, 1, 1), images, equal)
