"""Random changes of training images, drawn from the key of a sample alone."""

import torch
from torch import Tensor

from .hashing import splitmix64


class CropFlip:
    """A random crop out of the zero-padded image, and a mirror image half the time.

    The usual recipe for CIFAR: C. Lee et al., Deeply-supervised nets, AISTATS 2015; He et al., CVPR 2016, section 4.2.
    All (2 padding + 1)^2 crops are equally likely.

    Args:
        padding: pixels of zeros on every side; 0 does not crop.
        flip: mirror half of the images.

    Raises:
        ValueError: `padding` is negative.
    """

    def __init__(self, padding: int = 4, flip: bool = True) -> None:
        if padding < 0:
            raise ValueError(f"padding={padding} must be at least 0")
        self.padding = padding
        self.flip = flip

    def __call__(self, image: Tensor, key: int) -> Tensor:
        """The changed image, of the same shape and dtype; `image` is not modified.

        Args:
            image: [C, H, W], uint8 or float.
            key: seed of all draws.
        """
        bits = splitmix64(key)
        places = 2 * self.padding + 1
        down = (bits & 0xFFFFFF) % places - self.padding
        right = ((bits >> 24) & 0xFFFFFF) % places - self.padding
        if self.flip and bits >> 63:
            image = image.flip(2)
        return _shift(image, down, right) if down or right else image


def _shift(image: Tensor, down: int, right: int) -> Tensor:
    """The window of the image's size that begins `down` and `right` of its corner; zeros outside the image."""
    height, width = image.shape[-2:]
    window = torch.zeros_like(image)
    rows, columns = height - abs(down), width - abs(right)
    if rows > 0 and columns > 0:
        source = image.narrow(1, max(down, 0), rows).narrow(2, max(right, 0), columns)
        window.narrow(1, max(-down, 0), rows).narrow(2, max(-right, 0), columns).copy_(source)
    return window
