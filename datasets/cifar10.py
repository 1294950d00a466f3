"""CIFAR-10, from the official binary files or from class folders.

Source: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009;
https://www.cs.toronto.edu/~kriz/cifar.html (the file to get is "CIFAR-10 binary version", cifar-10-binary.tar.gz).
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decode import decode, is_image
from .files import Files, open_files
from .limits import DEFAULTS, CountedStream, Limits, read_regular

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BATCHES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
_PICKLES = {"batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))}
_FOLDER = "cifar-10-batches-bin"
_ARCHIVE = "cifar-10-binary.tar.gz"
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # label, then the red, green and blue planes
_EXPECTED = (
    f"expected {_FOLDER}, {_ARCHIVE}, or class folders train/CLASS/IMAGE and test/CLASS/IMAGE in a directory or .zip"
)
_UNSAFE = (
    "holds the Python version of CIFAR-10: pickles, which are unsafe (loading one can run any program); "
    f"use the binary version, {_ARCHIVE}"
)


class CIFAR10:
    """50,000 training and 10,000 test images of 32 x 32 in ten classes, held in memory (154 and 31 MB).

    Args:
        split: "train" or "test". Only this split is read.
        root: the folder `cifar-10-batches-bin` or the one that holds it; `cifar-10-binary.tar.gz` or the folder that
            holds it; or a directory, .zip or .tar with `train/CLASS/IMAGE` and `test/CLASS/IMAGE`. `~` is expanded.
            Archives are read in place.
        limits: sizes beyond which a file is not read; of a .tar.gz, all that it decompresses to is one.

    Attributes:
        images: uint8 [N, 3, 32, 32].
        labels: N classes, numbered as the official files number them.
        class_names: the ten names.

    Raises:
        FileNotFoundError: nothing at `root`, or other files than expected; the message lists the expected ones.
        OSError, ValueError: no such split; pickled batches; a file that is cut off, damaged or of another size. No
            sample can be skipped: all are decoded at the start.
    """

    classes: int = 10
    class_names: tuple[str, ...] = _CLASSES
    image_shape: tuple[int, int, int] = (3, _SIDE, _SIDE)
    splits: tuple[str, ...] = ("train", "test")
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)

    def __init__(self, split: str, root: str | Path, limits: Limits = DEFAULTS) -> None:
        if split not in self.splits:
            raise ValueError(f"CIFAR-10 has no split {split!r}, only {' and '.join(self.splits)}")
        images, labels = _load(Path(root).expanduser(), split, limits)
        self.images: Tensor = torch.from_numpy(images)
        self.labels: list[int] = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (uint8 [3, 32, 32], RGB) and class."""
        return self.images[index], self.labels[index]


_Data = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [N, 3, 32, 32] and labels [N]."""


def _load(root: Path, split: str, limits: Limits) -> _Data:
    """Images and labels of any form of `root`."""
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; {_EXPECTED}")
    if root.is_file() and root.name.endswith((".gz", ".tgz")):
        return _records(_from_tar(root, _BATCHES[split], limits))
    if root.is_dir():
        for folder in (root, root / _FOLDER):
            if any((folder / name).exists() for names in _BATCHES.values() for name in names):
                return _records(_from_folder(folder, _BATCHES[split], limits))
        if (root / _ARCHIVE).is_file():
            return _records(_from_tar(root / _ARCHIVE, _BATCHES[split], limits))
        if any((folder / name).exists() for folder in (root, root / "cifar-10-batches-py") for name in _PICKLES):
            raise ValueError(f"{root} {_UNSAFE}")
    return _from_class_folders(open_files(root, is_image, limits), root, split, limits)


def _from_folder(folder: Path, names: Iterable[str], limits: Limits) -> Iterator[tuple[str, bytes]]:
    for name in names:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        yield str(path), read_regular(str(path), limits)


def _from_tar(path: Path, names: tuple[str, ...], limits: Limits) -> Iterator[tuple[str, bytes]]:
    """The batches of a compressed tar, read sequentially; nothing is extracted to disk."""
    found: dict[str, bytes] = {}
    try:
        with (
            gzip.open(path) as stream,
            tarfile.open(fileobj=CountedStream(stream, limits.file_bytes, str(path)), mode="r|") as archive,
        ):
            for member in archive:
                limits.check_bytes(member.size, f"{path}/{member.name}")
                name = PurePosixPath(member.name).name
                if name in _PICKLES:
                    raise ValueError(f"{path} {_UNSAFE}")
                if name in names and (file := archive.extractfile(member)) is not None:
                    found[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is not a tar.gz, or damaged: {error}") from error
    for name in names:
        if name not in found:
            raise FileNotFoundError(f"{path} holds no {name}; {_EXPECTED}")
        yield f"{path}/{name}", found[name]


def _records(files: Iterable[tuple[str, bytes]]) -> _Data:
    """Images and labels of binary batches, one after the other."""
    tables: list[NDArray[np.uint8]] = []
    for name, data in files:
        if not data or len(data) % _RECORD:
            raise ValueError(f"{name} has {len(data)} bytes, not a multiple of {_RECORD}: cut off, or another format")
        table = np.frombuffer(data, dtype=np.uint8).reshape(-1, _RECORD)
        if table[:, 0].max() >= len(_CLASSES):
            raise ValueError(f"{name} has labels above 9, so it is not CIFAR-10's")
        tables.append(table)
    table = np.concatenate(tables)
    images = np.ascontiguousarray(table[:, 1:]).reshape(-1, 3, _SIDE, _SIDE)
    return images, table[:, 0].astype(np.int64)


def _from_class_folders(files: Files, root: Path, split: str, limits: Limits) -> _Data:
    members: list[int] = []
    labels: list[int] = []
    for place, name in enumerate(files.names):
        top, _, rest = name.partition("/")
        if top != split:
            continue
        folder = rest.partition("/")[0]
        if folder not in _CLASSES:
            raise ValueError(
                f"{root}/{name}: {folder!r} is not a class of CIFAR-10; for other data use dataset=image_folder"
            )
        members.append(place)
        labels.append(_CLASSES.index(folder))
    if not members:
        raise FileNotFoundError(f"{root} holds no images in {split}/CLASS; {_EXPECTED}")
    images = np.empty((len(members), 3, _SIDE, _SIDE), dtype=np.uint8)
    for image, member in zip(images, members, strict=True):
        pixels = decode(files.read(member), files.path(member), limits=limits)
        if pixels.shape != (_SIDE, _SIDE, 3):
            size = f"{pixels.shape[1]} x {pixels.shape[0]}"
            raise ValueError(f"{files.path(member)} has {size} pixels, not {_SIDE} x {_SIDE}")
        image[:] = pixels.transpose(2, 0, 1)
    return images, np.array(labels, dtype=np.int64)
