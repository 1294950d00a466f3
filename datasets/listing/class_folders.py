"""Folders of classes: where they are below a root, and which of them are splits."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_USUAL_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of a split's folder, in any case. Of several folders of one split the name that comes first counts."""
_SPLIT_OF = {name: split for split, names in _USUAL_NAMES.items() for name in names}
_ORDER = {name: number for names in _USUAL_NAMES.values() for number, name in enumerate(names)}


class Folder(NamedTuple):
    """A folder's files, which are consecutive in the sorted list of all names."""

    folders: Mapping[str, range]
    """Places of the files in each folder directly below, by its name."""
    files: Sequence[int]
    """Places of the files directly in it."""


def folder_at(names: Sequence[str], path: str, places: range) -> Folder:
    """What is directly below a folder.

    Args:
        names: of all files, sorted.
        path: of the folder, with its slash; "": the root.
        places: of its files.
    """
    folders: dict[str, range] = {}
    files: list[int] = []
    place = places.start
    while place < places.stop:
        folder, slash, _ = names[place][len(path) :].partition("/")
        if slash:
            # the first name after all that begin with `path/folder/`: no million names are looked at one by one
            after = bisect_left(names, f"{path}{folder}0", place, places.stop)
            folders[folder] = range(place, after)
            place = after
        else:
            files.append(place)
            place += 1
    return Folder(folders, files)


class ClassFolders(NamedTuple):
    """The classes of each split."""

    path: str
    """The folder in which they are, with its slash; "": the root."""
    splits: Mapping[str, Mapping[str, range]]
    """Places of the files, by split and class, ascending. Without folders of splits all is training data."""
    folders: Mapping[str, str]
    """The folder of each split; none where all is training data."""
    beside: Mapping[str, Sequence[int]]
    """Places of the files that are in no split, by a name for where they are."""

    @classmethod
    def of(cls, names: Sequence[str], root: Path) -> "ClassFolders":
        """The folders of classes among sorted names.

        Raises:
            ValueError: an image outside of a class, or other splits without one for training.
        """
        path, top = _inmost(names)
        inside = {name: folder_at(names, f"{path}{name}/", top.folders[name]) for name in top.folders if split_of(name)}
        # A class may be called `train`: it then contains images directly.
        divided = [name for name, found in inside.items() if found.folders]
        splits = _chosen(divided)
        if "train" not in splits:
            if len(divided) == len(top.folders) and not top.files:
                raise ValueError(_without_train(root / path, list(splits.values())))
            return cls(path, {"train": _classes(names, root, top, "")}, {}, {})
        of_split = {each: _classes(names, root, inside[name], f"{name}/") for each, name in splits.items()}
        return cls(path, of_split, splits, _beside(top, splits, [name for name in inside if name not in divided]))


def split_folders(names: Sequence[str]) -> Mapping[str, range]:
    """Places of each split's files, which need no folders of classes; all is training data where `train` is missing."""
    everything = range(len(names))
    folders = folder_at(names, "", everything).folders
    splits = _chosen(list(folders))
    return {split: folders[name] for split, name in splits.items()} if "train" in splits else {"train": everything}


def split_of(folder: str) -> str | None:
    """The split of which a folder has a usual name."""
    return _SPLIT_OF.get(folder.casefold())


def _chosen(folders: Sequence[str]) -> dict[str, str]:
    """The folder of each split: `val` rather than `Val`, and that rather than `valid`."""

    def order(folder: str) -> tuple[int, bool]:
        return _ORDER[folder.casefold()], folder != folder.casefold()

    named = {split: [folder for folder in folders if split_of(folder) == split] for split in _USUAL_NAMES}
    return {split: min(each, key=order) for split, each in named.items() if each}


def _inmost(names: Sequence[str]) -> tuple[str, Folder]:
    """The folder of the classes or splits, after the lone folders around them all."""
    everything = range(len(names))
    path, found = "", folder_at(names, "", everything)
    while len(found.folders) == 1 and not found.files:
        (name,) = found.folders
        below = folder_at(names, f"{path}{name}/", everything)
        if split_of(name) or (below.files and "train" not in map(split_of, below.folders)):
            break  # a split, or a class
        path, found = f"{path}{name}/", below
    return path, found


def _classes(names: Sequence[str], root: Path, folder: Folder, split: str) -> Mapping[str, range]:
    if folder.files:
        raise ValueError(f"{root}/{names[folder.files[0]]} is not in a class folder; expected {split}CLASS/IMAGE")
    return folder.folders


def _beside(top: Folder, splits: Mapping[str, str], undivided: Sequence[str]) -> Mapping[str, Sequence[int]]:
    left: dict[str, Sequence[int]] = {}
    for name, places in top.folders.items():
        if name not in splits.values():
            left[f"folder {name}/" + " without class folders" * (name in undivided)] = places
    return left | ({f"images beside {splits['train']}/": top.files} if top.files else {})


def _without_train(folder: Path, splits: Sequence[str]) -> str:
    found = " and ".join(f"{name}/" for name in splits)
    alone = f": dataset.root={folder / splits[0]} is that alone" if folder.is_dir() else ""
    return f"{folder} has {found}, but no train/{alone}"
