"""The YAML files of the user's folder and of Leyden as a reference: groups, choices, keys, and what is said of each.

Neither Hydra nor torch is imported: files are read, nothing is composed and no class is imported.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from .errors import refuse
from .help import group_choices
from .origin import shown
from .yaml_comments import Commented, Key, commented

ROOT = "train"
_UNLISTED = ("_target_", "_partial_", "defaults")
"""Keys that say what is built and composed."""
_SOURCE = re.compile(r"\[\w[\w. ]*\]")
"""How a comment of a topology begins that says where a figure comes from."""


@dataclass(frozen=True)
class Entry:
    """A key in one file: `choice` is GROUP=NAME, "" for the root file."""

    choice: str
    name: str
    value: Any
    comment: str


class Library:
    """All files of two search folders, the user's first, as when a config is composed."""

    def __init__(self, config_dir: str | None = None):
        self._folders = [Path(config_dir)] if config_dir is not None and Path(config_dir).is_dir() else []
        self._folders.append(Path(str(resources.files("leyden.conf"))))
        self.groups = {**group_choices(config_dir), **self._nested_groups()}
        """Names of the choices of each group."""
        self._read: dict[Path, Commented] = {}

    def _nested_groups(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for folder in self._folders:
            for file in folder.glob("*/*/*.yaml"):
                found.setdefault(str(file.parent.relative_to(folder)), set()).add(file.stem)
        return {group: sorted(names) for group, names in found.items()}

    def path(self, name: str) -> Path | None:
        """The file of GROUP/CHOICE, or of the root."""
        return next((file for folder in self._folders if (file := folder / f"{name}.yaml").is_file()), None)

    def file(self, name: str) -> Commented:
        """Of GROUP/CHOICE, or of the root; empty where there is none.

        Raises:
            ConfigError: it is no valid YAML.
        """
        path = self.path(name)
        if path is None:
            return Commented(())
        if path not in self._read:
            try:
                self._read[path] = commented(path.read_text(encoding="utf-8"))
            except yaml.YAMLError as error:
                raise refuse(shown(path), f"is no valid YAML: {str(error).splitlines()[0]}") from None
        return self._read[path]

    def keys(self, group: str, choice: str) -> dict[str, Key]:
        """Of a choice, by their dotted names in the whole config, with those of the files that it is based on."""
        file = self.file(f"{group}/{choice}")
        prefix = "" if file.is_global or group == "experiment" else f"{group.replace('/', '.')}."
        found: dict[str, Key] = {}
        for name in _defaults(file):
            if isinstance(name, str) and name != choice and name in self.groups.get(group, []):
                found |= self.keys(group, name)
        return found | {f"{prefix}{key}": value for key, value in file.keys.items() if key != "defaults"}

    def target(self, group: str, choice: str) -> str:
        """Import path of the class that a choice names; "" where it names none."""
        key = self.keys(group, choice).get(f"{group.replace('/', '.')}._target_")
        return str(key.value) if key else ""

    def default_choices(self, *more: Commented) -> dict[str, Any]:
        """The choice of each group, by the root's defaults list and then by further ones."""
        chosen: dict[str, Any] = {}
        for item in (item for file in (self.file(ROOT), *more) for item in _defaults(file)):
            if isinstance(item, Mapping):
                chosen.update({str(key).split()[-1].lstrip("/"): value for key, value in item.items()})
        return chosen

    def entries(self, group: str, choice: str) -> list[Entry]:
        """The keys of a choice that are set, or build a class."""
        keys = self.keys(group, choice).items()
        return [
            Entry(f"{group}={choice}", name, key.value, self._explanation(name, key, group, choice))
            for name, key in keys
            if _listed(name, key) and name != group
        ]

    def root_entries(self, under: str = "") -> list[Entry]:
        """The keys of the root file, or those below one of its keys."""
        keys = self.file(ROOT).keys.items()
        below = [(name, key) for name, key in keys if not under or name.startswith(f"{under}.")]
        return [Entry("", name, key.value, key.comment) for name, key in below if _listed(name, key)]

    def every_entry(self) -> Iterator[Entry]:
        """Of the root file and of all choices but experiments, whose keys others have."""
        yield from self.root_entries()
        for group, choices in self.groups.items():
            for choice in choices if group != "experiment" else []:
                yield from self.entries(group, choice)

    def _explanation(self, name: str, key: Key, group: str, choice: str) -> str:
        """What is said of a key: by its own file, by the root, or by another choice for the same class."""
        own = "" if _SOURCE.match(key.comment) else key.comment
        if own and not key.inherited:
            return own
        root = self.file(ROOT).keys.get(name)
        said = (root.comment if root else "") or own or self._said_by_others(name, group, choice)
        return "; ".join(part for part in (said, key.comment if key.comment != said else "") if part)

    def _said_by_others(self, name: str, group: str, choice: str) -> str:
        is_global = self.file(f"{group}/{choice}").is_global
        if is_global:
            chosen = self.default_choices(self.file(f"{group}/{choice}"))
            others = [(other, str(chosen[other])) for other in (name.split(".")[0],) if other in chosen]
        else:
            default, target = self.default_choices().get(group), self.target(group, choice)
            names = sorted(self.groups.get(group, []), key=lambda other: other != default)
            others = [(group, other) for other in names if self.target(group, other) == target]
        for other in others:
            there = self.keys(*other).get(name) if other != (group, choice) else None
            if there is None:
                continue
            if is_global:
                return self._explanation(name, there, *other)
            if there.comment and not _SOURCE.match(there.comment):
                return there.comment
        return ""


def _defaults(file: Commented) -> list[Any]:
    value = file.keys["defaults"].value if "defaults" in file.keys else []
    return value if isinstance(value, list) else []


def _listed(name: str, key: Key) -> bool:
    if isinstance(key.value, Mapping) and key.value:
        return "_target_" in key.value and "." in name
    return name.rpartition(".")[2] not in _UNLISTED
