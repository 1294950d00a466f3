"""Labels of images, one or any number for each, from a CSV file."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .limits import Limits, read_regular

_IMAGES = ("image", "file", "filename")
_SEVERAL, _ONE = ("labels",), ("label", "class")
_FORM = "image,labels (any number for each, with ; between them) or image,label (one)"
LabelSet = tuple[int, ...]
"""Different classes, ascending."""


class LabelFile(NamedTuple):
    """What a CSV file says."""

    class_names: tuple[str, ...]
    """All names in the file, sorted."""
    label_sets: tuple[LabelSet, ...]
    """Different sets of classes, sorted."""
    several: bool
    """Whether an image may have any number of classes; else each set has one."""
    sets: dict[str, int]
    """Index in `label_sets` by the image's path."""


def read_labels(path: Path, limits: Limits) -> LabelFile:
    """The labels of a file whose first line is `image,labels` or `image,label` (also `file`, `filename`; `class`).

    The others name an image and its classes with `;` between them, or none; or its one class.

    Raises:
        OSError: it cannot be read.
        ValueError: it has another form, or an image twice; the message has the line.
    """
    names_of: dict[str, frozenset[str]] = {}
    several, rows = _rows(path, limits)
    for line, image, labels in rows:
        names = [name for part in (labels.split(";") if several else [labels]) if (name := part.strip())]
        if (bad := next((name for name in names if _is_no_text(name)), None)) is not None:
            raise ValueError(f"{path}, line {line}: the label {bad.encode('utf-8', 'replace').decode()} is not UTF-8")
        if not several and not names:
            raise ValueError(f"{path}, line {line}: {image} has no label")
        if image in names_of:
            raise ValueError(f"{path}, line {line}: {image} is listed twice")
        if len(set(names)) < len(names):
            raise ValueError(f"{path}, line {line}: {image} has the same label twice")
        names_of[image] = frozenset(names)
    class_names = tuple(sorted(frozenset().union(*names_of.values())))
    if not class_names:
        raise ValueError(f"{path} names no labels; expected lines such as train/1.jpg,cat;dog")
    numbers = {name: number for number, name in enumerate(class_names)}
    found = {image: tuple(sorted(numbers[name] for name in names)) for image, names in names_of.items()}
    places = numbered(found.values())
    return LabelFile(class_names, tuple(places), several, {image: places[each] for image, each in found.items()})


def _is_no_text(name: str) -> bool:
    """Whether bytes of the file were no UTF-8: in paths they may be those of a file's name."""
    return any("\ud800" <= letter <= "\udfff" for letter in name)


def numbered(sets: Iterable[LabelSet]) -> dict[LabelSet, int]:
    """The different sets of classes, sorted, and the number of each."""
    return {each: number for number, each in enumerate(sorted(set(sets)))}


def _rows(path: Path, limits: Limits) -> tuple[bool, Iterator[tuple[int, str, str]]]:
    """Whether an image has any number of labels; number of the line, path of the image, and the text of its labels."""
    text = _text(path, limits)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        header = [cell.strip().lower() for cell in next(reader, [])]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    if len(header) != 2 or header[0] not in _IMAGES or header[1] not in (*_SEVERAL, *_ONE):
        raise ValueError(f"{path} must begin with the line {_FORM}")
    return header[1] in _SEVERAL, _lines(path, reader)


def _delimiter(text: str) -> str:
    """What stands between the cells of the first line: spreadsheets of many languages write semicolons."""
    first = text.partition("\n")[0]
    return next((each for each in (",", ";", "\t") if each in first), ",")


def _lines(path: Path, reader: Any) -> Iterator[tuple[int, str, str]]:
    try:
        for row in reader:
            if row and len(row) != 2:
                raise ValueError(f"{path}, line {reader.line_num}: {len(row)} cells, expected an image and its labels")
            if row:
                yield reader.line_num, re.sub(r"^(\./)+", "", row[0].strip()), row[1]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error


def _text(path: Path, limits: Limits) -> str:
    try:
        return read_regular(str(path), limits).decode("utf-8-sig", "surrogateescape")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; expected a CSV file that begins with image,labels") from None


def check_listed(path: Path, images: Sequence[str], listed: LabelFile) -> None:
    """Raise ValueError if images lack labels, or labels their image."""
    known = set(images)
    for kind, names in (
        ("has no line, with its path below dataset.root, for", [image for image in images if image not in listed.sets]),
        ("names images that do not exist, by their paths below dataset.root:", sorted(listed.sets.keys() - known)),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
            raise ValueError(f"{path} {kind} {shown}")
