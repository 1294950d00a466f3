"""Images in one folder for each class."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from .decode import is_image
from .file_samples import FileSamples
from .files import open_files
from .image_samples import SPLITS
from .label_file import check_listed, read_labels
from .limits import DEFAULTS, Limits


class ImageFolder(FileSamples):
    """One folder for each class, in a directory or inside a .zip or an uncompressed .tar.

    Either `train/CLASS/IMAGE` with optional `val/CLASS/IMAGE` and `test/CLASS/IMAGE`, or `CLASS/IMAGE`, all of which is
    training data. Images may be in subfolders of their class. In archives a single top folder around all this
    is allowed. JPEG, PNG, WebP, BMP, GIF, TIFF and AVIF files count, by their names; other and hidden files do not.
    Classes are numbered in the order of the training folders' names, samples in the order of their names. With a file
    of labels no class folders are needed (`train/IMAGE`, `IMAGE`), and classes are all names in the file, sorted.

    Args:
        split: "train", "val" or "test".
        root: directory, .zip or .tar; `~` is expanded.
        image_size: pixels a side; without an augmentation that chooses crops the shorter side is resized to this, then
            the centre is cropped.
        limits: sizes beyond which a file is not read.
        resize: pixels of the shorter side in evaluation, before the centre is cropped; "auto": crop * 8 / 7, which is
            256 for 224; None: `crop`.
        crop: pixels a side of the centre in evaluation; None: `image_size`.
        labels: CSV file that gives each image any number of classes (`read_labels`), by paths below `root`.
        scaled_decoding, exif_orientation: as `ImageSamples`.

    Attributes:
        class_names: the training folders, or the names in the file of labels, sorted.
        splits: the existing ones.

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: no images, no such split, an image outside class folders, a class of val or test that train does not
            have, an archive that cannot be read in place, or labels that do not agree with the images.
    """

    def __init__(
        self,
        split: str,
        root: str | Path,
        image_size: int = 224,
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        labels: str | Path | None = None,
        scaled_decoding: bool = False,
        exif_orientation: bool = True,
    ) -> None:
        super().__init__(image_size, limits, resize, crop, scaled_decoding, exif_orientation)
        self.root = Path(root).expanduser()
        self._files = open_files(self.root, is_image, limits)
        members = _by_split(self._files.names, self.root, with_classes=labels is None)
        self.splits: tuple[str, ...] = tuple(name for name in SPLITS if name in members)
        if split not in members:
            raise ValueError(f"{self.root} has no split {split!r}, only {', '.join(self.splits)}")
        if labels is None:
            self.class_names: tuple[str, ...] = tuple(sorted({name for _, name in members["train"]}))
            numbers = {name: number for number, name in enumerate(self.class_names)}
            refuse_unknown((name for _, name in members[split]), numbers, f"{self.root}: {split}")
        else:
            file = Path(labels).expanduser()
            listed = read_labels(file, limits)
            check_listed(file, [name for each in members.values() for _, name in each], listed)
            self.class_names, self.label_sets, numbers = listed
        self.classes = len(self.class_names)
        self._members = np.array([place for place, _ in members[split]], dtype=np.int64)
        self._labels = np.array([numbers[name] for _, name in members[split]], dtype=np.int64)


def _by_split(names: Sequence[str], root: Path, with_classes: bool) -> dict[str, list[tuple[int, str]]]:
    """The split's files, each as its index in `names` and its class, for every existing split.

    Args:
        with_classes: files are in class folders; False: they may be anywhere, and have their names in place of classes.
    """
    if not len(names):
        raise ValueError(f"{root} holds no images; expected train/CLASS/IMAGE or CLASS/IMAGE")
    # A class may be called `train`: it then contains images directly.
    with_splits = any(name.startswith("train/") and name.count("/") > with_classes for name in names)
    members: dict[str, list[tuple[int, str]]] = {}
    for place, name in enumerate(names):
        *folders, _ = name.split("/")
        split = "train"
        if with_splits:
            if not folders or folders[0] not in SPLITS:
                continue
            split = folders.pop(0)
        if not with_classes:
            members.setdefault(split, []).append((place, name))
        elif folders:
            members.setdefault(split, []).append((place, folders[0]))
        else:
            raise ValueError(
                f"{root}/{name} is not in a class folder; expected {f'{split}/' if with_splits else ''}CLASS/IMAGE"
            )
    return members


def refuse_unknown(names: Iterable[str], known: Container[str], where: str) -> None:
    """Raise ValueError if there are classes that train does not have."""
    unknown = sorted({name for name in names if name not in known})
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise ValueError(f"{where} has classes that train does not have: {shown}")
