"""The frozen config of a run as plain values. No schema, no torch."""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..base.paths import absolute
from ..base.regular_file import open_regular
from ..base.untrusted_file import DamagedFile
from .folder import CHANGES, FROZEN, SWEEP
from .untrusted_yaml import looks_harmless, read_yaml

_MOST_LINKS = 40
_REMEDY = "remove the file: the run then has the config with which it began"


class OpenedRun:
    """A run folder and its frozen files, each opened once: what is read is what the owners are asked of.

    Found by their paths, they could be replaced between the two, as by a link that another user changes.

    Attributes:
        owners: user ids of the folder, of the links that lead to it, root's aside, and of each file that was read.

    Raises:
        OSError: there is no such folder, or it cannot be opened.
    """

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._folder, links = _open_folder(run_dir)
        self.owners = {os.fstat(self._folder).st_uid, *links - {0}}

    def __enter__(self) -> "OpenedRun":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def open_file(self, path: Path) -> BinaryIO:
        """A regular file in the folder."""
        file = open_regular(path, folder=self._folder)
        self.owners.add(os.fstat(file.fileno()).st_uid)
        return file

    def first_values(self) -> dict[str, Any]:
        """The config with which the run began. Raises as `read_values`."""
        values: Any = read_yaml(self.run_dir / FROZEN, self.open_file)
        if not isinstance(values, dict):
            raise DamagedFile(self.run_dir / FROZEN, "it holds no keys")
        return values

    def changes(self) -> list[dict[str, Any]]:
        """See `changes_of`."""
        file = self.run_dir / CHANGES
        try:
            items = read_yaml(file, self.open_file)
        except FileNotFoundError:
            if CHANGES in os.listdir(self._folder):  # a broken link is no run without changes
                raise
            items = []
        if not isinstance(items, list):
            raise DamagedFile(file, "it must be a list of changes", _REMEDY)
        for item in items:
            changed = item.get("changed") if isinstance(item, dict) else None
            if not isinstance(changed, dict) or not all(isinstance(key, str) for key in changed):
                raise DamagedFile(file, "each change must be `changed: {key: value}`", _REMEDY)
        return [item["changed"] for item in items]

    def values(self) -> dict[str, Any]:
        """See `read_values`."""
        values = self.first_values()
        for changed in self.changes():
            for key, value in changed.items():
                *parents, last = key.split(".")
                node: Any = values
                for parent in parents:
                    node = node.get(parent)
                    if not isinstance(node, dict):
                        text = f"it changes {key}, and {parent} holds no keys in this run"
                        raise DamagedFile(self.run_dir / CHANGES, text)
                node[last] = value
            moved = any(key.partition(".")[0] in ("topology", "strategy") for key in changed)
            if moved and "processes" not in changed:  # resume.yaml edited by hand: computed again
                values.pop("processes", None)
        return values


def _open_folder(path: Path) -> tuple[int, set[int]]:
    """Descriptor of a folder, and the owners of the links on the way, each followed as it was seen."""
    left, links = list(reversed(absolute(path).parts)), list[int]()
    with ExitStack() as opened:
        at = -1
        while left:
            part = left.pop()
            found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=None if part == "/" else at)
            opened.callback(os.close, found)
            status = os.fstat(found)
            if not stat.S_ISLNK(status.st_mode):
                at = found
                continue
            links.append(status.st_uid)
            if len(links) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left += reversed(Path(os.readlink("", dir_fd=found)).parts)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at), set(links)


def owners_of(folder: Path) -> set[int]:
    """User ids of the folder of a run or a sweep, and of the files that hold its config."""
    with OpenedRun(folder) as run:
        for name in (FROZEN, CHANGES, SWEEP):
            with suppress(FileNotFoundError), run.open_file(folder / name):
                pass
        return run.owners


def read_values(run_dir: Path) -> dict[str, Any]:
    """The run's config as plain values: the frozen one, then what each `leyden resume` changed, in order.

    Raises:
        DamagedFile: one of the two files is damaged.
        OSError: it cannot be read.
    """
    with OpenedRun(run_dir) as run:
        return run.values()


def values_when_frozen(run_dir: Path) -> dict[str, Any]:
    """The config with which the run began, as plain values. Raises as `read_values`."""
    with OpenedRun(run_dir) as run:
        return run.first_values()


def changes_of(run_dir: Path) -> list[dict[str, Any]]:
    """Keys and values changed by each `leyden resume` of the run, newest last.

    Raises:
        DamagedFile: resume.yaml is damaged.
    """
    with OpenedRun(run_dir) as run:
        return run.changes()


def check_files(run_dir: Path) -> None:
    """Look for damage of the frozen files that can be found without parsing a whole config.

    Raises:
        DamagedFile: there is some.
        OSError: a file cannot be read.
    """
    changes_of(run_dir)
    if not looks_harmless(run_dir / FROZEN):
        read_yaml(run_dir / FROZEN)


def trials_in(run_dir: Path) -> list[Path]:
    """The trials of a pipeline; none for a run that trains a model of its own."""
    pipeline = read_values(run_dir).get("pipeline")
    return [] if pipeline is None else trial_folders(run_dir, pipeline["trials"])


def trial_folders(run_dir: Path, trials: Sequence[str]) -> list[Path]:
    return [absolute(run_dir / trial) for trial in trials]
