"""Images in one folder for each class."""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from .decode import is_image
from .file_samples import FileSamples
from .files import Archive, Directory, open_files
from .label_file import check_listed, read_labels
from .limits import DEFAULTS, Limits
from .listing.class_folders import ClassFolders, split_folders
from .listing.other_classes import mention, missed_classes, tables
from .listing.unread import by_reason, by_suffix

_Places = TypeVar("_Places")


class ImageFolder(FileSamples):
    """One folder for each class, in a directory or inside a .zip or an uncompressed .tar.

    Either `train/CLASS/IMAGE` with optional `val/CLASS/IMAGE` and `test/CLASS/IMAGE`, or `CLASS/IMAGE`, all of which is
    training data. Folders called `training`, `valid`, `validation`, `dev`, `testing`, `eval` or `evaluation` are those
    splits, too, in any case. Images may be in subfolders of their class. Lone folders around all this are stepped into.
    JPEG, PNG, WebP, BMP, GIF, TIFF and AVIF files count, by their names; other and hidden files do not. Classes are
    numbered in the order of the training folders' names, samples in the order of their names. With a file of labels no
    class folders are needed (`train/IMAGE`, `IMAGE`), and classes are all names in the file, sorted.

    Args:
        split: "train", "val" or "test".
        root: directory, .zip or .tar; `~` is expanded.
        image_size: pixels a side; without an augmentation that chooses crops the shorter side is resized to this, then
            the centre is cropped.
        limits: sizes beyond which a file is not read.
        resize: pixels of the shorter side in evaluation, before the centre is cropped; "auto": crop * 8 / 7, which is
            256 for 224; None: `crop`.
        crop: pixels a side of the centre in evaluation; None: `image_size`.
        labels: CSV file that gives each image one class or any number (`read_labels`), by paths below `root`.
        scaled_decoding, exif_orientation: as `ImageSamples`.

    Attributes:
        class_names: the training folders, or the names in the file of labels, sorted.
        splits: the existing ones.
        folder: the lone folders in `root` in which all this was found, with a slash at the end; "": none.
        left_out: number of files that are not read, by reason.
        missed_classes: where there is one class, the end of a sentence that names where more may be, and their root.

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: no images, no such split, an image outside class folders, a class of val or test that train does not
            have, an archive that cannot be read in place, or labels that do not agree with the images.
    """

    RESUMABLE = ("root", "labels")

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
        self._files = files = open_files(self.root, is_image, limits)
        if not len(files.names):
            raise ValueError(f"{self.root} holds no images; expected train/CLASS/IMAGE or CLASS/IMAGE")
        if labels is None:
            self._take_folders(split, files)
        else:
            self._take_listed(split, files, Path(labels).expanduser())
        self.classes = len(self.class_names)

    def _take_folders(self, split: str, files: Directory | Archive) -> None:
        """Take the split's samples, and their classes from their folders."""
        try:
            found = ClassFolders.of(files.names, self.root)
        except ValueError as error:
            raise ValueError(f"{error}{mention(tables(self.root))}") from error
        classes = self._chosen(found.splits, split)
        self.class_names: tuple[str, ...] = tuple(sorted(found.splits["train"]))
        self.folder = f"{files.top}{found.path}"
        self._base = f"{found.path}{found.folders[split]}/" if found.folders else found.path
        self.left_out = by_reason(files.unread, found, files.top)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        if len(numbers) == 1:
            self.missed_classes = missed_classes(files.names, found, self.root)
        refuse_unknown(classes, numbers, f"{self.root}: {split}")
        self._members = np.concatenate([np.arange(places.start, places.stop) for places in classes.values()])
        self._labels = np.repeat([numbers[name] for name in classes], [len(places) for places in classes.values()])

    def _take_listed(self, split: str, files: Directory | Archive, table: Path) -> None:
        """Take the split's samples, and their classes from a table."""
        names, splits = files.names, split_folders(files.names)
        chosen = self._chosen(splits, split)
        listed = read_labels(table, self.limits)
        check_listed(table, [name for places in splits.values() for name in names[places.start : places.stop]], listed)
        self.class_names, numbers = listed.class_names, listed.sets
        if listed.several:  # else set number n is that of class n alone
            self.label_sets = listed.label_sets
        beside = len(names) - sum(map(len, splits.values()))
        self.folder = files.top
        self.left_out = by_suffix(files.unread) | ({"images beside the splits": beside} if beside else {})
        self._base = f"{names[chosen.start].partition('/')[0]}/" if len(splits) > 1 else ""
        self._members = np.arange(chosen.start, chosen.stop)
        self._labels = np.array([numbers[names[place]] for place in chosen], dtype=np.int64)

    def _chosen(self, found: Mapping[str, _Places], split: str) -> _Places:
        self.splits: tuple[str, ...] = tuple(found)
        if split not in found:
            raise ValueError(f"{self.root} has no split {split!r}, only {', '.join(self.splits)}")
        return found[split]


def refuse_unknown(names: Iterable[str], known: Container[str], where: str) -> None:
    """Raise ValueError if there are classes that train does not have."""
    unknown = sorted({name for name in names if name not in known})
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise ValueError(f"{where} has classes that train does not have: {shown}")
