"""Files that are found among a dataset's and are not read: counted where they lie, and summed up by reason."""

from collections import Counter
from collections.abc import Callable, Mapping

from .class_folders import ClassFolders

_MOST = 100_000
"""Different folders and suffixes that are counted apart: names may be a stranger's."""
_LONGEST = 12
_NO_SUFFIX = "files without suffix"
Unread = Mapping[tuple[str, str], int]
"""Number of files by folder, "" or with a slash at its end, and suffix."""


class Counted:
    """A choice of file names, that counts the others.

    Args:
        wanted: whether a file of this path counts.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self.others: Counter[tuple[str, str]] = Counter()

    def __call__(self, name: str) -> bool:
        if self._wanted(name):
            return True
        folder, slash, file = name.rpartition("/")
        stem, _, suffix = file.rpartition(".")
        key = (folder + slash, f".{suffix.lower()}" if stem and len(suffix) < _LONGEST else _NO_SUFFIX)
        if key not in self.others and len(self.others) >= _MOST:
            key = ("", _NO_SUFFIX)
        self.others[key] += 1
        return False


def by_suffix(unread: Unread) -> dict[str, int]:
    """Number of files by suffix."""
    found: Counter[str] = Counter()
    for (_, suffix), count in unread.items():
        found[suffix] += count
    return dict(sorted(found.items()))


def by_reason(unread: Unread, found: ClassFolders, around: str) -> dict[str, int]:
    """Number of files by the reason for which they are not read.

    That is a suffix; a folder that would be a class, had it any image, and its suffixes; or a folder beside the splits.

    Args:
        around: the folder with its slash, below which the paths of `found` are.
    """
    usual: dict[tuple[str, str], int] = {}
    lost: dict[str, Counter[str]] = {}
    beside = Counter({where: len(places) for where, places in found.beside.items()})
    split_of = {name: split for split, name in found.folders.items()}
    base = around + found.path
    for (folder, suffix), count in unread.items():
        top, _, rest = folder.removeprefix(base).partition("/")
        of_class = rest.partition("/")[0] if split_of else top
        if not folder.startswith(base) or not top:
            usual[folder, suffix] = count
        elif split_of and top not in split_of:
            where = f"folder {top}/"
            beside[next((each for each in found.beside if each.startswith(where)), where)] += count
        elif not of_class or of_class in found.splits[split_of.get(top, "train")]:
            usual[folder, suffix] = count
        else:
            lost.setdefault(f"{top}/{of_class}/" if split_of else f"{top}/", Counter())[suffix] += count
    of_classes = {f"all of {name}: {', '.join(sorted(each))}": each.total() for name, each in sorted(lost.items())}
    return by_suffix(usual) | of_classes | dict(sorted(beside.items()))
