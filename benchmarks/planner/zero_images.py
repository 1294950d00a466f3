"""What benchmarks/planner/memory.py trains with: images in no memory of their own, and marks between the steps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

STEP_ENDS = "leyden: a step ends"


class ZeroImages:
    """Black images of class 0, made for each batch anew.

    Args:
        split: "train", "val" or "test".
        samples: of each split; few, as their order takes memory.
        classes: number of classes.
        image_shape: channels, height, width in pixels.
    """

    splits = ("train", "val", "test")

    def __init__(self, split: str, samples: int, classes: int, image_shape: Sequence[int]) -> None:
        self.samples = samples
        self.image_shape, self.classes = self.declared(samples, classes, image_shape)
        self.mean = self.std = (0.5,) * self.image_shape[0]

    @staticmethod
    def declared(samples: int, classes: int, image_shape: Sequence[int]) -> tuple[tuple[int, int, int], int]:
        channels, height, width = image_shape
        return (channels, height, width), classes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(self.image_shape, dtype=torch.uint8), 0

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(indices), *self.image_shape, dtype=torch.uint8), torch.zeros_like(indices)


class Marks:
    """Callback that marks the ends of steps in the profiler's events."""

    def on_step_end(self, state: Any) -> None:
        with record_function(STEP_ENDS):
            pass
