"""Images of Hugging Face's datasets: parquet and Arrow files, from the Hub or from a folder."""

import operator
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .decode import Least, decode
from .image_samples import SPLITS, ImageSamples
from .label_file import numbered
from .limits import DEFAULTS, Limits, read_regular
from .listing.identity import name_hashes

_NAMES = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""The splits by their names there."""


class HubImages(ImageSamples):
    """Images and labels of two columns, read through the package `datasets`, and decoded as those of every dataset.

    Args:
        split: "train", "val" or "test".
        source: name on the Hub (`uoft-cs/cifar10`), a folder with parquet files, or one written by `save_to_disk`.
        image_size, limits, resize, crop, scaled_decoding, exif_orientation: as `ImageSamples`.
        name: of the configuration, where there are several.
        revision: commit or tag on the Hub.
        image: column of the images; None: the only one of type Image.
        label: column of the class (a number, a name, or a list of them); None: the only one of type ClassLabel, or
            `label`, or `labels`.

    Attributes:
        class_names: None if the column holds numbers without names.
        splits: the existing ones whose images have classes.
        left_out: number of images in splits that are not used, by split.

    Raises:
        ImportError: the package is not installed.
        FileNotFoundError, ValueError: no such data, split or column.
    """

    thread_safe: bool = True

    def __init__(
        self,
        split: str,
        source: str,
        image_size: int = 224,
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        name: str | None = None,
        revision: str | None = None,
        image: str | None = None,
        label: str | None = None,
        scaled_decoding: bool = False,
        exif_orientation: bool = True,
    ) -> None:
        super().__init__(image_size, limits, resize, crop, scaled_decoding, exif_orientation)
        self.source = source
        found = _loaded(source, name, revision)
        tables = {ours: found[each] for ours, names in _NAMES.items() for each in names if each in found}
        if "train" not in tables:
            raise ValueError(f"{source} has no split train, only {', '.join(map(str, found)) or 'none'}")
        features = tables["train"].features
        self._image = image or _column(source, features, ("Image",), (), "image")
        self._label_column = label or _column(source, features, ("ClassLabel",), ("label", "labels"), "label")
        for column in (self._image, self._label_column):
            if column not in features:
                raise ValueError(f"{source} has no column {column!r}, only {', '.join(features)}")
        feature = features[self._label_column]
        kind = str(getattr(getattr(feature, "feature", feature), "dtype", ""))  # of a list: that of its items
        if "int" not in kind and "string" not in kind:
            raise ValueError(f"{source}: column {self._label_column!r} must hold classes from 0 on, or their names")
        values = {each: _values(table, self._label_column) for each, table in tables.items()}
        # the test images of a competition have -1
        unlabelled = {each: of for each, of in values.items() if -1 in of}
        values = {each: of for each, of in values.items() if of and each not in unlabelled}
        used = {each for names in _NAMES.values() for each in names}
        self.left_out = {f"split {each} without classes": len(of) for each, of in unlabelled.items()}
        self.left_out |= {f"split {each}": len(found[each]) for each in found if each not in used}
        self.splits: tuple[str, ...] = tuple(each for each in SPLITS if each in values)
        if split not in values:
            raise ValueError(f"{source} has no split {split!r} with classes, only {', '.join(self.splits) or 'none'}")
        self.class_names: tuple[str, ...] | None = _names(feature, values)
        self._set_labels(source, values, split)
        self._rows = _images(tables[split], self._image)

    def _set_labels(self, source: str, values: dict[str, list[Any]], split: str) -> None:
        several = isinstance(values[split][0], list)
        used = {each for of in values.values() for label in of for each in (label if several else [label])}
        if not used:
            raise ValueError(f"{source}: column {self._label_column!r} is empty")
        named = isinstance(next(iter(used)), str)
        numbers: dict[Any, Any] = {each: n for n, each in enumerate(self.class_names or ())} if named else {}
        if not named and not all(isinstance(each, int) and each >= 0 for each in used):
            raise ValueError(f"{source}: column {self._label_column!r} must hold classes from 0 on, or their names")
        self.classes = len(self.class_names) if self.class_names else 1 + max(used)
        if not named and max(used) >= self.classes:
            raise ValueError(
                f"{source}: column {self._label_column!r} has class {max(used)}, and {self.classes} have names"
            )
        if several:
            sets = {
                split: [tuple(sorted({int(numbers.get(n, n)) for n in label})) for label in of]
                for split, of in values.items()
            }
            places = numbered(each for of in sets.values() for each in of)
            self.label_sets = tuple(places)
            labels = [places[each] for each in sets[split]]
        else:
            labels = [numbers.get(each, each) for each in values[split]]
        self._labels: NDArray[np.int64] = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> NDArray[np.int64]:
        """[N], class of each sample, or the number of its set of labels."""
        return self._labels

    @property
    def name_hashes(self) -> NDArray[np.uint64]:
        """[N], of each row's number: rows have no other name."""
        return name_hashes(map(str, range(len(self))))

    def original(self, index: int) -> tuple[bytes, int]:
        """The file of a sample as it is, and class, or the number of its set of labels.

        Raises:
            OSError, ValueError: it cannot be read; the message has its row.
        """
        return self._file(operator.index(index)), self._label(index)

    def name(self, index: int) -> str:
        """Row of a sample."""
        return f"{self.source}, row {index:,}"

    def _file(self, index: int) -> bytes:
        row = self._rows[index][self._image] or {}
        if row.get("bytes") is None:
            if not row.get("path"):
                raise ValueError(f"{self.name(index)}: no image")
            return read_regular(row["path"], self.limits)
        self.limits.check_bytes(len(row["bytes"]), self.name(index))
        return row["bytes"]

    def _pixels(self, index: int, least: Least) -> NDArray[np.uint8]:
        return decode(self._file(index), self.name(index), least, self.limits, self.exif_orientation)

    def _label(self, index: int) -> int:
        return int(self._labels[index])


def _loaded(source: str, name: str | None, revision: str | None) -> Any:
    """The tables of all splits by their names."""
    datasets = _package()
    folder = Path(source).expanduser()
    try:
        if (folder / "dataset_dict.json").exists():
            return datasets.load_from_disk(str(folder))
        if (folder / "state.json").exists():
            return {"train": datasets.load_from_disk(str(folder))}
        return datasets.load_dataset(str(folder) if folder.exists() else source, name, revision=revision)
    except (OSError, ValueError):
        raise
    except Exception as error:  # of pyarrow, of the Hub, of the package itself
        raise ValueError(f"{source} cannot be read by the package datasets: {error}") from error


def _column(source: str, features: Any, kinds: Sequence[str], usual: Sequence[str], key: str) -> str:
    """The only column of a type, or one with a usual name."""
    found = [column for column, feature in features.items() if type(feature).__name__ in kinds]
    found = found if len(found) == 1 else [column for column in usual if column in features][:1]
    if not found:
        raise ValueError(f"{source} has the columns {', '.join(features)}: set dataset.{key} to one of them")
    return found[0]


def _values(table: Any, column: str) -> list[Any]:
    """Of a whole column, without reading the others."""
    return table.select_columns([column])[:][column]


def _names(feature: Any, values: dict[str, list[Any]]) -> tuple[str, ...] | None:
    """Of the classes, in the order of their numbers."""
    inner = getattr(feature, "feature", feature)  # of a list
    if hasattr(inner, "names"):
        return tuple(inner.names)
    each = {name for of in values.values() for label in of for name in (label if isinstance(label, list) else [label])}
    return tuple(sorted(each)) if each and all(isinstance(name, str) for name in each) else None


def _images(table: Any, column: str) -> Any:
    """The rows with their files, not decoded: pixels come from our decoder."""
    return table.select_columns([column]).cast_column(column, _package().Image(decode=False))


def _package() -> Any:
    """The package `datasets`, an extra, and by no import statement: those of this folder name nothing of this name."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise ImportError("dataset=hub needs Hugging Face's datasets: pip install 'leyden[hub]'") from error
