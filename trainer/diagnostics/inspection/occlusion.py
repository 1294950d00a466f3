"""Occlusion maps (Zeiler and Fergus 2014, section 4.2)."""

from collections.abc import Callable

import torch
from torch import Tensor

_BATCH = 64


@torch.no_grad()
def occlusion_map(
    probabilities: Callable[[Tensor], Tensor], image: Tensor, label: int, patch: int, stride: int, value: float = 0.0
) -> Tensor:
    """Probability of a class for an image with one square of it covered, by the square's centre.

    Args:
        probabilities: images (batch, channels, height, width) to probabilities (batch, classes).
        image: (channels, height, width).
        patch: pixels a side of the square, which is cut off at the image's border.
        stride: pixels from a centre to the next.
        value: of the covered pixels; 0 is the mean of normalized images.

    Returns:
        (rows, columns).
    """
    height, width = image.shape[1:]
    rows, columns = _centres(height, stride), _centres(width, stride)
    covered = image.repeat(len(rows) * len(columns), 1, 1, 1)
    for number, (row, column) in enumerate((row, column) for row in rows for column in columns):
        top, left = max(0, row - patch // 2), max(0, column - patch // 2)
        covered[number, :, top : row - patch // 2 + patch, left : column - patch // 2 + patch] = value
    found = [probabilities(part)[:, label] for part in covered.split(_BATCH)]
    return torch.cat(found).view(len(rows), len(columns)).cpu()


def _centres(side: int, stride: int) -> list[int]:
    """Centres `stride` pixels apart, the same distance from both ends."""
    count = max(1, (side - 1) // stride + 1)
    first = (side - 1 - (count - 1) * stride) // 2
    return [first + number * stride for number in range(count)]
