"""Handwritten digits that come with scikit-learn: real handwriting without a download.

Source: E. Alpaydin, C. Kaynak, Optical recognition of handwritten digits, UCI Machine Learning Repository, 1998 (its
test set); scikit-learn carries a copy as datasets/data/digits.csv.gz.
"""

import gzip
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from .images_in_memory import ImagesInMemory

_TRAIN = 1437  # of 1,797: four fifths
_PERMUTATION_SEED = 1998  # never change: it defines the test images
_SIDE = 8


class Digits(ImagesInMemory):
    """1,797 grey images of the digits 0 to 9, written by 13 people; 1,437 for training, 360 for the test.

    The two are cut from one fixed random permutation, so both have the same distribution of writers and digits.

    Args:
        split: "train" or "test".
        image_size: pixels a side, at least 8. The 8 x 8 originals are enlarged once, bilinearly.

    Attributes:
        images: uint8 [N, 1, image_size, image_size].
        labels: the N digits.
        mean, std: of the training images' values, scaled to 0..1.

    Raises:
        ValueError: no such split, or `image_size` under 8.
        FileNotFoundError: scikit-learn is missing, or no longer contains the file.
    """

    classes: int = 10
    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, split: str, image_size: int = 32) -> None:
        if split not in self.splits:
            raise ValueError(f"the digits have no split {split!r}, only {' and '.join(self.splits)}")
        self.image_shape, _ = self.declared(image_size)
        pixels, digits = _read()
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(_PERMUTATION_SEED))
        images = _enlarge(pixels[order], image_size)
        train = images[:_TRAIN].double() / 255
        self.mean: tuple[float, ...] = (train.mean().item(),)
        self.std: tuple[float, ...] = (train.std(correction=0).item(),)
        part = slice(0, _TRAIN) if split == "train" else slice(_TRAIN, None)
        self._hold(images[part].clone(), digits[order][part])

    @staticmethod
    def declared(image_size: int = 32) -> tuple[tuple[int, int, int], int]:
        """Shape of an image and number of classes, without reading anything.

        Raises:
            ValueError: `image_size` under 8.
        """
        if image_size < _SIDE:
            raise ValueError(f"image_size={image_size} is smaller than the originals: at least {_SIDE}")
        return (1, image_size, image_size), 10


def _read() -> tuple[Tensor, Tensor]:
    """Pixels (float [1797, 1, 8, 8], 0..16) and digits (int64 [1797]), in the file's order."""
    # Only its path is needed: importing scikit-learn takes a second.
    found = importlib.util.find_spec("sklearn")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    if not folders:
        raise FileNotFoundError("the digits come with scikit-learn, which is missing: pip install scikit-learn")
    path = Path(folders[0]) / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: this scikit-learn has no digits; install scikit-learn 1.5 or newer")
    table = _table(path)
    pixels = torch.from_numpy(table[:, :-1].copy()).reshape(-1, 1, _SIDE, _SIDE)
    return pixels, torch.from_numpy(table[:, -1].astype(np.int64))


@cache
def _table(path: Path) -> NDArray[np.float32]:
    """The file's rows, read once for all splits of a process: most of the time that a split takes."""
    with gzip.open(path, "rt", encoding="ascii") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.float32)


def _enlarge(pixels: Tensor, side: int) -> Tensor:
    """uint8 [N, 1, side, side] of values 0..255, from float [N, 1, 8, 8] of 0..16."""
    scaled = pixels * (255 / 16)
    if side != _SIDE:
        scaled = interpolate(scaled, size=(side, side), mode="bilinear", align_corners=False)
    return scaled.round().clamp(0, 255).to(torch.uint8)
