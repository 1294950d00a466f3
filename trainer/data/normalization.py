"""Pixel values to network inputs: scaling and normalization by the dataset's channels."""

from typing import Any

import torch
from torch import Tensor

from ..core import declarations
from ..core.protocols import Dataset


class Normalization:
    """Scaling of uint8 images to values from 0 to 1, and their normalization if the dataset declares mean and std.

    Args:
        like: whose mean and std are taken in place of the dataset's.

    Attributes:
        mean, std: of values from 0 to 1, each (1, channels, 1, 1), on the CPU; 0 and 1 without declared values.
    """

    def __init__(self, dataset: Dataset, like: Any = None):
        channels, declared = dataset.image_shape[0], declarations.of_dataset(dataset if like is None else like)
        mean, std = declared.mean, declared.std
        self.mean = torch.tensor([0.0] * channels if mean is None else mean).view(1, -1, 1, 1)
        self.std = torch.tensor([1.0] * channels if std is None else std).view(1, -1, 1, 1)
        self._on_device = self.mean, self.std

    def scale_images(self, images: Tensor) -> Tensor:
        """uint8 images as new floats from 0 to 1; others as they are."""
        if images.dtype is not torch.uint8:
            return images
        # CUDA divides by a number as it multiplies by its reciprocal, whose last bit is not the CPU's
        return images.float().div_(torch.full((), 255.0, device=images.device))

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize scaled images (batch, channels, height, width) in place."""
        mean, std = self._on_device
        if mean.device != images.device:
            mean, std = self._on_device = mean.to(images.device), std.to(images.device)
        return images.sub_(mean).div_(std)
