"""Grey patches of photographs, at random places."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..decode import decode, is_image
from ..files import open_files
from ..hashing import splitmix64
from ..images_in_memory import ImagesInMemory
from ..limits import DEFAULTS, Limits

_TEST = 10
"""One file of so many is a test file."""
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Luma of ITU-R BT.601."""


class ImagePatches(ImagesInMemory):
    """Square grey patches of the images in a directory, a .zip or an uncompressed .tar; folders do not matter.

    Every tenth file, in the order of their names, is a test file. Places are drawn evenly from (file, patch)
    alone. A photograph is reduced by averaging before it is cut, since JPEG's blocks are 8 pixels wide and edges
    of full-sized photographs are blurred. All patches are held in memory; they have one class.

    Args:
        split: "train" or "test".
        root: directory, .zip or .tar; `~` is expanded.
        size: pixels a side of a patch.
        per_image: patches of a photograph.
        reduce: pixels a side of the squares that are averaged to one.
        limits: sizes beyond which a file is not read.

    Attributes:
        images: uint8 [N, 1, size, size].
        mean, std: 0.5 and 0.25, of values scaled to 0..1.

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: no such split, a number under 1, no images that are large enough, or an unreadable one.
    """

    RESUMABLE = ("root",)
    splits: tuple[str, ...] = ("train", "test")
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)

    def __init__(
        self,
        split: str,
        root: str | Path,
        size: int = 12,
        per_image: int = 40,
        reduce: int = 2,
        limits: Limits = DEFAULTS,
    ) -> None:
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r}, only {' and '.join(self.splits)}")
        self.image_shape, self.classes = self.declared(size, per_image, reduce)
        files = open_files(Path(root).expanduser(), is_image, limits)
        patches: list[NDArray[np.uint8]] = []
        for number, _ in enumerate(files.names):
            if (number % _TEST == _TEST - 1) == (split == "test"):
                grey = _reduced(decode(files.read(number), files.path(number), limits=limits), reduce)
                patches += _cut(grey, size, per_image, number)
        if not patches:
            raise ValueError(f"{root} has no {split} images of at least {size * reduce} pixels a side")
        images = torch.from_numpy(np.stack(patches))[:, None]
        self._hold(images, torch.zeros(len(images), dtype=torch.int64))

    @staticmethod
    def declared(
        size: int = 12, per_image: int = 40, reduce: int = 2, **others: object
    ) -> tuple[tuple[int, int, int], int]:
        """Shape of a patch and number of classes, without reading anything.

        Raises:
            ValueError: a number under 1.
        """
        for name, value in (("size", size), ("per_image", per_image), ("reduce", reduce)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        return (1, size, size), 1


def _reduced(pixels: NDArray[np.uint8], by: int) -> NDArray[np.uint8]:
    """Grey values [height // by, width // by]: means over squares."""
    grey = pixels.astype(np.float32) @ _GREY
    height, width = grey.shape[0] // by, grey.shape[1] // by
    means = grey[: height * by, : width * by].reshape(height, by, width, by).mean((1, 3))
    return means.round().clip(0, 255).astype(np.uint8)


def _cut(grey: NDArray[np.uint8], size: int, count: int, file: int) -> list[NDArray[np.uint8]]:
    """Patches at places drawn from (file, patch); none of an image that is too small."""
    rows, columns = grey.shape[0] - size + 1, grey.shape[1] - size + 1
    if rows < 1 or columns < 1:
        return []
    places = [splitmix64((file << 32) + number) for number in range(count)]
    return [
        grey[top : top + size, left : left + size]
        for top, left in (((place >> 32) % rows, (place & 0xFFFFFFFF) % columns) for place in places)
    ]
