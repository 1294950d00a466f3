"""A network that makes the host wait for its device; a dataset whose targets are vectors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.datasets.synthetic import Synthetic


class Waits(nn.Module):
    def __init__(self, classes: int, image_shape: tuple[int, int, int], **_: Any):
        super().__init__()
        channels, height, width = image_shape
        self.linear = nn.Linear(channels * height * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.linear(images.flatten(1))
        largest = scores.detach().max().item()
        on_host = scores.detach().mean().cpu()
        return scores + torch.ones(1).to(scores.device) * float(on_host) * largest


class Vectors(Synthetic):
    """Each image has one of the classes."""

    multi_label = True

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = super().batch(indices)
        return images, F.one_hot(labels, self.classes).float()
