"""Random changes of training images, drawn from the key of a sample alone."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .hashing import splitmix64, splitmix64_each

_24_BITS = np.uint64(0xFFFFFF)
_CACHED = 5 << 15
"""Bytes of padded images, a part of a core's second cache."""


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

    thread_safe: bool = True

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
        down, right, flip = self._drawn(key)
        if flip:
            image = image.flip(2)
        down, right = down - self.padding, right - self.padding
        return _shift(image, down, right) if down or right else image

    def augment_images(self, images: Tensor, keys: Sequence[int]) -> Tensor:
        """What `self(image, key)` is for each image of a batch.

        Args:
            images: [samples, C, H, W]; may be changed, and be what is returned.
            keys: of each image.
        """
        drawn = self._drawn_each(keys)
        if images.device.type != "cpu":
            return self._on_device(images, torch.from_numpy(drawn))
        pixels = np.ascontiguousarray(images.numpy())
        flips = np.flatnonzero(drawn[:, 2])
        if len(flips):
            pixels[flips] = _mirrored(pixels[flips])
        if self.padding:
            _shift_each(pixels, drawn[:, 0], drawn[:, 1], self.padding)
        return torch.from_numpy(pixels)

    def _on_device(self, images: Tensor, drawn: Tensor) -> Tensor:
        """As on the CPU, without that the host waits: each pixel is looked up where it comes from."""
        drawn = drawn.pin_memory() if images.device.type == "cuda" else drawn
        drawn = drawn.to(images.device, non_blocking=True)
        height, width = images.shape[2:]
        down = torch.arange(height, device=images.device) + drawn[:, :1] - self.padding
        right = torch.arange(width, device=images.device) + drawn[:, 1:2] - self.padding
        inside = ((down >= 0) & (down < height))[:, :, None] & ((right >= 0) & (right < width))[:, None, :]
        right = right.clamp(0, width - 1)
        right = torch.where(drawn[:, 2:] > 0, width - 1 - right, right)
        places = down.clamp(0, height - 1)[:, :, None] * width + right[:, None, :]
        flat = images.flatten(2).gather(2, places.flatten(1)[:, None, :].expand(-1, images.shape[1], -1))
        return flat.view_as(images) * inside[:, None]

    def _drawn(self, key: int) -> tuple[int, int, bool]:
        """Rows and columns of padding that are left out above and on the left, and whether the image is mirrored."""
        bits = splitmix64(key)
        places = 2 * self.padding + 1
        return (bits & 0xFFFFFF) % places, ((bits >> 24) & 0xFFFFFF) % places, self.flip and bits >> 63 == 1

    def _drawn_each(self, keys: Sequence[int]) -> NDArray[np.int64]:
        """`_drawn` of each key: a row of three."""
        bits = splitmix64_each(keys)
        places = np.uint64(2 * self.padding + 1)
        down, right = bits & _24_BITS, (bits >> np.uint64(24)) & _24_BITS
        flip = bits >> np.uint64(63) if self.flip else np.zeros_like(bits)
        return np.stack([down % places, right % places, flip], axis=1).astype(np.int64)


def _mirrored(pixels: NDArray[Any]) -> NDArray[Any]:
    """Contiguous images [..., W] mirrored, which may be changed: bytes eight at a time, where that is possible."""
    if pixels.itemsize == 1 and pixels.shape[-1] % 8 == 0:
        return pixels.view(np.uint64).byteswap(inplace=True)[..., ::-1].copy().view(pixels.dtype)
    return pixels[..., ::-1]


def _shift_each(pixels: NDArray[Any], down: NDArray[np.int64], right: NDArray[np.int64], padding: int) -> None:
    """Replace each of the images [samples, C, H, W] by the window of its size, `down` and `right` of the corner of the
    zero-padded image.

    A row is one value of as many bytes, as NumPy copies pixels one after the other. A few images at a time are padded,
    which stay in the processor's cache.
    """
    samples, channels, height, width = pixels.shape
    row = np.dtype((np.void, width * pixels.itemsize))
    rows = pixels.reshape(samples, channels, height * width).view(row)
    shape = (channels, height + 2 * padding, width + 2 * padding)
    together = min(samples, max(1, _CACHED // (math.prod(shape) * pixels.itemsize)))
    padded = np.zeros((together, *shape), pixels.dtype)
    image, channel, line, pixel = padded.strides
    places = 2 * padding + 1
    windows = np.ndarray(
        (together, channels, places, places, height), row, padded, strides=(image, channel, line, pixel, line)
    )
    for first in range(0, samples, together):
        part = rows[first : first + together]
        windows[: len(part), :, padding, padding] = part
        here = slice(first, first + len(part))
        part[:] = windows[np.arange(len(part)), :, down[here], right[here]]


def _shift(image: Tensor, down: int, right: int) -> Tensor:
    """The window of the image's size that begins `down` and `right` of its corner; zeros outside the image."""
    height, width = image.shape[-2:]
    window = torch.zeros_like(image)
    rows, columns = height - abs(down), width - abs(right)
    if rows > 0 and columns > 0:
        source = image.narrow(1, max(down, 0), rows).narrow(2, max(right, 0), columns)
        window.narrow(1, max(-down, 0), rows).narrow(2, max(-right, 0), columns).copy_(source)
    return window
