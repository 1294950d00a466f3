"""A network that makes the host wait for its device."""

from typing import Any

import torch
from torch import Tensor, nn


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
