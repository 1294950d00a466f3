"""ImageNet (ILSVRC 2012) as it is distributed: by Kaggle, or as the official archives."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from .decode import is_image
from .devkit import ANNOTATIONS, devkit_classes
from .file_samples import FileSamples
from .files import Files, open_files
from .image_folder import refuse_unknown
from .limits import DEFAULTS, Limits, read_regular
from .listing.unread import by_suffix

_PLACES: Mapping[str, Sequence[str]] = {
    split: (f"ILSVRC/Data/CLS-LOC/{split}", f"Data/CLS-LOC/{split}", split, f"ILSVRC2012_img_{split}.tar")
    for split in ("train", "val", "test")
}
_SOLUTION = ("LOC_val_solution.csv", "ILSVRC/LOC_val_solution.csv")
_NUMBER = re.compile(r"_(\d{1,8})\.\w+$")


class ImageNet(FileSamples):
    """The training and validation images of ILSVRC 2012, where they were unpacked or in the official tars.

    Training images are in a folder for each class (`n01440764/...JPEG`), or in a tar of such tars. Validation images
    are in one folder or tar, and their classes in Kaggle's LOC_val_solution.csv or in the development kit; or they are
    in class folders, too. The test images have no public classes, and are not used.

    Args:
        split: "train" or "val".
        root: folder that holds all this; `~` is expanded.
        image_size, limits, resize, crop, scaled_decoding, exif_orientation: as `ImageSamples`.

    Attributes:
        class_names: WordNet's numbers (n01440764), sorted: the order of both splits.
        left_out: number of files that are not read: among the images by suffix, and of the test images.

    Raises:
        ValueError: images or classes are missing, or do not agree.
    """

    RESUMABLE = ("root",)
    splits = ("train", "val")

    def __init__(
        self,
        split: str,
        root: str | Path,
        image_size: int = 224,
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        scaled_decoding: bool = False,
        exif_orientation: bool = True,
    ) -> None:
        super().__init__(image_size, limits, resize, crop, scaled_decoding, exif_orientation)
        if split not in self.splits:
            raise ValueError(f"{root} has no split {split!r}, only {', '.join(self.splits)}")
        self.root = Path(root).expanduser()
        train, val, solution = _found(self.root)
        trained = open_files(train, is_image, limits, nested=train.is_file())
        of_train = [_folder(train, name) for name in trained.names]
        self.class_names: tuple[str, ...] = tuple(sorted(set(of_train)))
        if not self.class_names:
            raise ValueError(f"{train} holds no images; expected CLASS/IMAGE")
        self.classes = len(self.class_names)
        validated = open_files(val, is_image, limits)
        unread = Counter(by_suffix(trained.unread))
        unread.update(by_suffix(validated.unread))
        self.left_out = dict(unread) | _test_images(self.root)
        if split == "train":
            self._files, names = trained, of_train
        else:
            self._files = validated
            names = _val_classes(val, self._files, solution, limits)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        refuse_unknown(names, numbers, str(val))
        self._members = np.arange(len(names))
        self._labels = np.array([numbers[name] for name in names], dtype=np.int64)


def _found(root: Path) -> tuple[Path, Path, Path | None]:
    """Where the images of train and val are, and the classes of val; None: val has class folders.

    Raises:
        ValueError: with everything that is missing.
    """
    missing: list[str] = []
    places: dict[str, Path] = {}
    for split in ImageNet.splits:
        names = _PLACES[split]
        there = _first(root, names)
        if there is None:
            missing.append(f"the images of {split} ({' or '.join(names)})")
        else:
            places[split] = there
    solution = _first(root, (*_SOLUTION, *ANNOTATIONS))
    if solution is None and not ("val" in places and _has_folders(places["val"])):
        missing.append(f"the classes of val ({_SOLUTION[0]}, or {' or '.join(ANNOTATIONS)})")
    if missing:
        raise ValueError(
            f"{root} is not the whole of ImageNet, it lacks {'; '.join(missing)}. Put them there as image-net.org or "
            "Kaggle has them, or set dataset=image_folder for train/CLASS/IMAGE and val/CLASS/IMAGE"
        )
    return places["train"], places["val"], solution


def _test_images(root: Path) -> dict[str, int]:
    place = _first(root, _PLACES["test"])
    if place is None:
        return {}
    return {f"folder {place.name}/": len(os.listdir(place))} if place.is_dir() else {place.suffix: 1}


def _first(root: Path, names: Sequence[str]) -> Path | None:
    return next((path for name in names if (path := root / name).exists()), None)


def _has_folders(val: Path) -> bool:
    return val.is_dir() and any(path.is_dir() for path in val.iterdir())


def _folder(place: Path, name: str) -> str:
    folder, slash, _ = name.partition("/")
    if not slash:
        raise ValueError(f"{place}/{name} is not in a class folder")
    return folder


def _val_classes(val: Path, files: Files, solution: Path | None, limits: Limits) -> list[str]:
    """The class of each validation image."""
    if not len(files.names):
        raise ValueError(f"{val} holds no images")
    if solution is None or all("/" in name for name in files.names):
        return [_folder(val, name) for name in files.names]
    if solution.suffix == ".csv":
        by_name = _kaggle_classes(solution, limits)
        return [_known(by_name.get(PurePosixPath(name).stem), val, name, solution) for name in files.names]
    in_order = devkit_classes(solution, limits)
    return [_known(_of_number(in_order, name), val, name, solution) for name in files.names]


def _of_number(in_order: Sequence[str], name: str) -> str | None:
    """The class of ILSVRC2012_val_00000001.JPEG is the first."""
    number = _NUMBER.search(name)
    place = int(number[1]) - 1 if number else -1
    return in_order[place] if 0 <= place < len(in_order) else None


def _known(found: str | None, val: Path, name: str, solution: Path) -> str:
    if found is None:
        raise ValueError(f"{solution} has no class for {val}/{name}")
    return found


def _kaggle_classes(path: Path, limits: Limits) -> dict[str, str]:
    """Classes by the image's name: the first word of PredictionString, before the boxes."""
    rows = csv.reader(io.StringIO(read_regular(str(path), limits).decode("utf-8-sig", "replace"), newline=""))
    try:
        if next(rows, []) != ["ImageId", "PredictionString"]:
            raise ValueError(f"{path} must begin with the line ImageId,PredictionString")
        return {row[0]: row[1].split()[0] for row in rows if len(row) == 2 and row[1].strip()}
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from error
