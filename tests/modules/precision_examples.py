"""A model that notes in which precision it computes."""

import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Notes(nn.Module):
    """Linear, ReLU, Linear; one line of JSON a forward in `file`, with the worker's rank in its name."""

    def __init__(self, file: str, classes: int, image_shape: tuple[int, ...]):
        super().__init__()
        self.file = file
        self.first = nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], 8)
        self.last = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.first(images.flatten(1)))
        with open(Path(self.file).with_suffix(f".{os.environ.get('RANK', '0')}"), "a") as file:
            line = {
                "training": self.training,
                "images": str(images.dtype),
                "weights": str(self.first.weight.dtype),
                "hidden": str(hidden.dtype),
                "strides": list(images.stride()),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "benchmark": torch.backends.cudnn.benchmark,
                "matmul_precision": torch.get_float32_matmul_precision(),
            }
            file.write(json.dumps(line) + "\n")
        return self.last(hidden)
