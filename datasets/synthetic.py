"""Random images with random labels, for speed measurements."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from .hashing import splitmix64

_OFFSETS = 1 << 16


class Synthetic:
    """Noise: nothing can be learned from it.

    An image is a slice of one pool of random bytes, at an offset and mixed with a byte chosen by a hash of (split,
    index). So it costs little more than a copy, memory does not grow with the number of samples, and sample i is the
    same in every process.

    Args:
        split: "train", "val" or "test".
        samples: number of samples in each split.
        classes: labels are drawn evenly from 0..classes - 1.
        image_shape: channels, height, width in pixels.

    Raises:
        ValueError: no such split, or a number under 1.
    """

    splits: tuple[str, ...] = ("train", "val", "test")
    mean: tuple[float, ...]
    std: tuple[float, ...]
    synthetic: bool = True
    """Marks meaningless results; the trainer warns of it."""
    thread_safe: bool = True

    def __init__(
        self, split: str, samples: int = 1024, classes: int = 10, image_shape: Sequence[int] = (3, 32, 32)
    ) -> None:
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r}, only {', '.join(self.splits)}")
        self.image_shape, self.classes = self.declared(samples, classes, image_shape)
        self.samples = samples
        channels = self.image_shape[0]
        self.mean, self.std = (0.5,) * channels, (0.25,) * channels
        self._start = self.splits.index(split) << 48  # indices of splits do not overlap
        self._size = prod(self.image_shape)
        generator = torch.Generator().manual_seed(0)
        self._pool = torch.randint(256, (self._size + _OFFSETS,), dtype=torch.uint8, generator=generator)

    @staticmethod
    def declared(
        samples: int = 1024, classes: int = 10, image_shape: Sequence[int] = (3, 32, 32)
    ) -> tuple[tuple[int, int, int], int]:
        """Shape of an image and number of classes, without creating any image.

        Raises:
            ValueError: a number under 1.
        """
        if samples < 1 or classes < 1:
            raise ValueError(f"samples={samples} and classes={classes} must be at least 1")
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape={list(image_shape)} must be channels, height, width, each at least 1")
        channels, height, width = image_shape
        return (channels, height, width), classes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (uint8 [C, H, W]) and label."""
        if not -self.samples <= index < self.samples:
            raise IndexError(f"index {index} of {self.samples} samples")
        bits = splitmix64(self._start + index % self.samples)
        offset, byte, rest = bits % _OFFSETS, (bits >> 16) & 255, bits >> 24
        image = (self._pool[offset : offset + self._size] ^ byte).view(self.image_shape)
        return image, rest % self.classes

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (uint8 [samples, C, H, W]) and labels (int64 [samples])."""
        images = torch.empty(len(indices), *self.image_shape, dtype=torch.uint8)
        labels: list[int] = []
        for row, index in zip(images, indices.tolist(), strict=True):
            image, label = self[index]
            row.copy_(image)
            labels.append(label)
        return images, torch.tensor(labels)
