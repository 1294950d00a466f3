"""Changes of geometry of a batch: rotation and lens distortion."""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from .checks import not_negative, probability
from .draws import Draws, between, uniform


def pixel_grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of each pixel's centre from the image's, in pixels: down (height, 1) and right (1, width)."""
    height, width = images.shape[2:]
    down = torch.arange(height, device=images.device, dtype=torch.float32) - (height - 1) / 2
    right = torch.arange(width, device=images.device, dtype=torch.float32) - (width - 1) / 2
    return down[:, None], right[None, :]


def sampled(images: Tensor, down: Tensor, right: Tensor, fill: Tensor) -> Tensor:
    """Images whose pixels come from other places, interpolated bilinearly.

    Args:
        down, right: place of each pixel's source from the centre, in pixels: (batch, height, width).
        fill: value of each channel outside of the image, (1, channels, 1, 1).
    """
    height, width = images.shape[2:]
    grid = torch.stack([right * (2 / width), down * (2 / height)], -1).to(images.dtype)
    return grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


class Rotation:
    """Rotation about the centre; what enters at the corners has the dataset's mean colour.

    Args:
        degrees: largest angle, to either side.
        p: probability that an image is rotated.

    Raises:
        ValueError: a negative angle, a probability outside 0..1.
    """

    def __init__(self, degrees: float = 10.0, p: float = 0.5) -> None:
        self.radians = math.radians(not_negative("degrees", degrees))
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Rotated images, the same labels."""
        chosen, angle = uniform(draws.keys, 2)[:, :, None, None].unbind(1)
        angle = between(angle, -self.radians, self.radians)
        down, right = pixel_grid(images)
        cos, sin = torch.cos(angle), torch.sin(angle)
        rotated = sampled(images, down * cos - right * sin, down * sin + right * cos, draws.mean)
        return torch.where(chosen[..., None] < self.p, rotated, images), labels


class LensDistortion:
    """Barrel or pincushion distortion, one as likely as the other (Deep Image, section 4).

    A pixel at r of the way from the centre to a corner comes from r (1 + k r^2): k > 0 is a barrel, k < 0 a pincushion.
    What enters at the border has the dataset's mean colour.

    Args:
        degree: largest |k|, under 1 / 3, so that no part of an image appears twice.
        p: probability that an image is distorted.

    Raises:
        ValueError: a degree that is negative or too large, a probability outside 0..1.
    """

    def __init__(self, degree: float = 0.2, p: float = 0.5) -> None:
        if not 0 <= degree < 1 / 3:
            raise ValueError(f"degree={degree} must be at least 0 and less than 1/3")
        self.degree = float(degree)
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Distorted images, the same labels."""
        chosen, k = uniform(draws.keys, 2)[:, :, None, None].unbind(1)
        down, right = pixel_grid(images)
        height, width = images.shape[2:]
        squared = (down**2 + right**2) / ((height / 2) ** 2 + (width / 2) ** 2)
        stretch = 1 + between(k, -self.degree, self.degree) * squared
        distorted = sampled(images, down * stretch, right * stretch, draws.mean)
        return torch.where(chosen[..., None] < self.p, distorted, images), labels
