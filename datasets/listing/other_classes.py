"""Where classes may be that a dataset of one class has missed: what a message about it names."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from .class_folders import ClassFolders, folder_at

_MOST = 3
"""CSV files that are named."""


def missed_classes(names: Sequence[str], found: ClassFolders, root: Path) -> tuple[str, str]:
    """Where more classes may be, as the end of a sentence, and the folder that may be the root for them; or ""."""
    path = _folder_with_classes(names, found)
    if path:
        return f"; {path} has more", str(root / path) if root.is_dir() else ""
    return mention(tables(root, found.path)), ""


def _folder_with_classes(names: Sequence[str], found: ClassFolders) -> str:
    """The first folder below a lone class or beside the splits that has several folders of images; "": none."""
    for each in (*found.splits["train"].values(), *found.beside.values()):
        places = each if isinstance(each, range) else range(0)
        path = found.path
        while places:
            below = folder_at(names, path, places)
            if len(below.folders) > 1 and not below.files:
                return path
            if len(below.folders) != 1:
                break
            ((folder, places),) = below.folders.items()
            path = f"{path}{folder}/"
    return ""


def tables(root: Path, path: str = "") -> list[Path]:
    """CSV files at or next to a place of images, in which their labels may be."""
    folders = dict.fromkeys([root, root / path, root.parent]) if root.is_dir() else [root.parent]
    return list(islice((file for folder in folders for file in sorted(folder.glob("*.csv"))), _MOST))


def mention(files: Sequence[Path]) -> str:
    """The end of a sentence that names them, or ""."""
    return f"; labels may be in {', '.join(map(str, files))} (dataset.labels)" if files else ""
