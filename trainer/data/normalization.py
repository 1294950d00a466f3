"""Pixel values to network inputs: scaling and normalization by the dataset's channels."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.protocols import Dataset


def scale_and_normalize(dataset: Dataset) -> Callable[[Tensor], Tensor]:
    """uint8 images (batch, channels, height, width) to float, normalized if the dataset declares mean and std."""
    mean, std = channel_statistics(dataset)

    def prepare(images: Tensor) -> Tensor:
        nonlocal mean, std
        if images.dtype is not torch.uint8:
            return images
        if mean.device != images.device:
            mean, std = mean.to(images.device), std.to(images.device)
        return images.float().div_(255.0).sub_(mean).div_(std)

    return prepare


def channel_statistics(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of values from 0 to 1, each (1, channels, 1, 1); 0 and 1 without declared values."""
    channels = dataset.image_shape[0]
    mean = torch.tensor(getattr(dataset, "mean", [0.0] * channels)).view(1, -1, 1, 1)
    std = torch.tensor(getattr(dataset, "std", [1.0] * channels)).view(1, -1, 1, 1)
    return mean, std
