"""Photographs to batches as one writes it with torch's DataLoader: by Pillow, or by simplejpeg and OpenCV."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from leyden.datasets.augmentation.crops import RandomResizedCrop

BATCH, SIDE = 64, 224
Epoch = Callable[[int], int]
"""Reads one epoch by its number; the number of its images."""
Crop = Callable[[bytes, int], NDArray[np.uint8]]
"""Pixels [height, width, 3] of a random crop of a file, by a key."""
_CROPS = RandomResizedCrop()


class Originals:
    """The files of a .zip; each process opens it for itself, as a forked one would share the position in the file."""

    def __init__(self, path: Path):
        self.path = path
        with zipfile.ZipFile(path) as archive:
            self.names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        self.archives: dict[int, zipfile.ZipFile] = {}

    def __len__(self) -> int:
        return len(self.names)

    def original(self, index: int) -> tuple[bytes, int]:
        process = os.getpid()
        if process not in self.archives:
            self.archives[process] = zipfile.ZipFile(self.path)
        return self.archives[process].read(self.names[index]), 0


class Photographs:
    """Decoded, cropped, resized and mirrored one by one.

    Args:
        source: has `len` and `original(index)`: the file, and its class.
    """

    def __init__(self, source: Any, crop: Crop):
        self.source = source
        self.crop = crop

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tensor:
        data, _ = self.source.original(index)
        # a new crop each time, as of torchvision's transforms, whose draws cost more
        key = int(torch.randint(1 << 62, ()))
        return torch.from_numpy(self.crop(data, key)).permute(2, 0, 1)


def by_pillow(data: bytes, key: int) -> NDArray[np.uint8]:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    (((left, top, width, height), flip),) = _CROPS.views((image.height, image.width), key)
    box = (left, top, left + width, top + height)
    part = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.array(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else part)


def by_opencv(data: bytes, key: int) -> NDArray[np.uint8]:
    """INTER_AREA: the fastest of OpenCV's that is antialiased; it is up to 49 grey levels from Pillow's."""
    import cv2  # pyright: ignore[reportMissingImports]  # an extra

    pixels = simplejpeg.decode_jpeg(data, "RGB")
    (((left, top, width, height), flip),) = _CROPS.views(pixels.shape[:2], key)
    part = cv2.resize(pixels[top : top + height, left : left + width], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return cv2.flip(part, 1) if flip else part


def loader(source: Any, crop: Crop, num_workers: int) -> Epoch:
    """Batches by a DataLoader, whose processes stay."""
    data: Any = Photographs(source, crop)
    batches = DataLoader(data, BATCH, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0)
    return lambda epoch: sum(len(batch) for batch in batches)
