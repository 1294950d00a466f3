"""MNIST and Fashion-MNIST, from their IDX files.

Sources: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, 1998;
H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, 2017, arXiv 1708.07747. An IDX file is a number for its type and
dimensions, the size of each dimension, and the values.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .images_in_memory import ImagesInMemory
from .limits import DEFAULTS, CountedStream, Limits, read_regular

_SIDE = 28
_BYTES = b"\0\0\x08"
_PREFIX = {"train": "train", "test": "t10k"}


class MNIST(ImagesInMemory):
    """60,000 training and 10,000 test images of handwritten digits, grey, 28 x 28, held in memory (47 and 8 MB).

    Args:
        split: "train" or "test". Only this split is read.
        root: the folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-...`, each also as .gz; or one
            that holds it as `raw` or `MNIST/raw`. `~` is expanded.
        limits: sizes beyond which a file is not read; of a .gz, what it decompresses to.

    Attributes:
        images: uint8 [N, 1, 28, 28].
        labels: N classes.

    Raises:
        FileNotFoundError: nothing at `root`, or a file is missing.
        OSError, ValueError: no such split, or a file that is cut off, damaged or of another kind.
    """

    RESUMABLE = ("root",)
    classes: int = 10
    class_names: tuple[str, ...] = tuple("0123456789")
    image_shape: tuple[int, int, int] = (1, _SIDE, _SIDE)
    splits: tuple[str, ...] = ("train", "test")
    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)

    def __init__(self, split: str, root: str | Path, limits: Limits = DEFAULTS) -> None:
        name = type(self).__name__
        if split not in self.splits:
            raise ValueError(f"{name} has no split {split!r}, only {' and '.join(self.splits)}")
        above = Path(root).expanduser()
        if not above.is_dir():
            raise FileNotFoundError(f"{above} is no folder; expected one with {_PREFIX[split]}-images-idx3-ubyte")
        folders = (above, above / "raw", above / name / "raw")
        images = _array(_found(folders, f"{_PREFIX[split]}-images", 3), 3, limits)
        path = _found(folders, f"{_PREFIX[split]}-labels", 1)
        labels = _array(path, 1, limits)
        if images.shape != (len(labels), _SIDE, _SIDE):
            shape = " x ".join(map(str, images.shape))
            raise ValueError(f"{path} has {len(labels)} labels, for images of {shape}; expected N x 28 x 28")
        if len(labels) and labels.max() >= self.classes:
            raise ValueError(f"{path} has labels above {self.classes - 1}, so it is not that of {name}")
        self._hold(torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64)))


class FashionMNIST(MNIST):
    """60,000 training and 10,000 test images of clothes, as MNIST."""

    class_names: tuple[str, ...] = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    mean: tuple[float, ...] = (0.2860,)
    std: tuple[float, ...] = (0.3530,)


def _found(folders: tuple[Path, ...], name: str, dimensions: int) -> Path:
    forms = [f"{name}{dot}idx{dimensions}-ubyte{packed}" for packed in ("", ".gz") for dot in "-."]
    for folder in folders:
        for form in forms:
            if (folder / form).exists():
                return folder / form
    raise FileNotFoundError(f"{folders[0]} holds no {forms[0]}, nor {forms[2]}")


def _array(path: Path, dimensions: int, limits: Limits) -> NDArray[np.uint8]:
    """The values of an IDX file of bytes."""
    data = _content(path, limits)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:3] != _BYTES or data[3] != dimensions:
        raise ValueError(f"{path} is no IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
    if len(data) - header != math.prod(shape):
        declared = " x ".join(map(str, shape))
        raise ValueError(f"{path} has {len(data) - header:,} values, its header says {declared}: cut off or damaged")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _content(path: Path, limits: Limits) -> bytes:
    if path.suffix != ".gz":
        return read_regular(str(path), limits)
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    try:
        with gzip.open(path) as stream:
            return CountedStream(stream, limits.file_bytes, str(path)).read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
