"""Images in one folder for each class."""

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .decode import decode_square, is_image
from .files import Files, open_files
from .limits import DEFAULTS, Limits

_SPLITS = ("train", "val", "test")


class ImageFolder:
    """One folder for each class, in a directory or inside a .zip or an uncompressed .tar.

    Either `train/CLASS/IMAGE` with optional `val/CLASS/IMAGE` and `test/CLASS/IMAGE`, or `CLASS/IMAGE`, all of which is
    training data. Images may be in subfolders of their class. In archives a single top folder around all this
    is allowed. JPEG, PNG, WebP, BMP and GIF files count, by their names; other and hidden files do not.
    Classes are numbered in the order of the training folders' names, samples in the order of their names.

    Args:
        split: "train", "val" or "test".
        root: directory, .zip or .tar; `~` is expanded.
        image_size: pixels a side; the shorter side is resized to this, then the centre is cropped.
        limits: sizes beyond which a file is not read.

    Attributes:
        class_names: the training folders, sorted.
        splits: the existing ones.
        mean, std: of ImageNet's training images, scaled to 0..1.

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: no images, no such split, an image outside class folders, a class of val or test that train does not
            have, or an archive that cannot be read in place.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __init__(self, split: str, root: str | Path, image_size: int = 224, limits: Limits = DEFAULTS) -> None:
        self.image_shape, _ = self.declared(image_size)
        self.root = Path(root).expanduser()
        self.image_size = image_size
        self.limits = limits
        self._files: Files = open_files(self.root, is_image, limits)
        members = _by_split(self._files.names, self.root)
        self.splits: tuple[str, ...] = tuple(name for name in _SPLITS if name in members)
        if split not in members:
            raise ValueError(f"{self.root} has no split {split!r}, only {', '.join(self.splits)}")
        self.class_names: tuple[str, ...] = tuple(sorted({name for _, name in members["train"]}))
        self.classes: int = len(self.class_names)
        self._members, self._labels = _number(members[split], self.class_names, f"{self.root}: {split}")

    @staticmethod
    def declared(image_size: int = 224, **others: object) -> tuple[tuple[int, int, int], None]:
        """Shape of an image, without reading anything; the classes are the folders'.

        Raises:
            ValueError: `image_size` under 1.
        """
        if image_size < 1:
            raise ValueError(f"image_size={image_size} must be at least 1")
        return (3, image_size, image_size), None

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (uint8 [3, image_size, image_size], RGB) and class.

        Raises:
            OSError, ValueError: the file cannot be read or decoded; the message has its name.
        """
        member = int(self._members[operator.index(index)])
        image = decode_square(self._files.read(member), self._files.path(member), self.image_size, self.limits)
        return image, int(self._labels[index])

    def name(self, index: int) -> str:
        """The path of a sample's file."""
        return self._files.path(int(self._members[index]))


def _by_split(names: Sequence[str], root: Path) -> dict[str, list[tuple[int, str]]]:
    """The split's files, each as its index in `names` and its class, for every existing split."""
    if not len(names):
        raise ValueError(f"{root} holds no images; expected train/CLASS/IMAGE or CLASS/IMAGE")
    # A class may be called `train`: it then contains images directly.
    with_splits = any(name.startswith("train/") and name.count("/") > 1 for name in names)
    members: dict[str, list[tuple[int, str]]] = {}
    for place, name in enumerate(names):
        *folders, _ = name.split("/")
        split = "train"
        if with_splits:
            if not folders or folders[0] not in _SPLITS:
                continue
            split = folders.pop(0)
        if folders:
            members.setdefault(split, []).append((place, folders[0]))
        else:
            raise ValueError(
                f"{root}/{name} is not in a class folder; expected {f'{split}/' if with_splits else ''}CLASS/IMAGE"
            )
    return members


def _number(
    members: Iterable[tuple[int, str]], class_names: Sequence[str], where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices in the list of files, and classes as numbers: [N] each."""
    numbers = {name: number for number, name in enumerate(class_names)}
    pairs = list(members)
    unknown = sorted({name for _, name in pairs} - numbers.keys())
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise ValueError(f"{where} has classes that train does not have: {shown}")
    places = np.array([place for place, _ in pairs], dtype=np.int64)
    return places, np.array([numbers[name] for _, name in pairs], dtype=np.int64)
