"""The YAML files of the user's folder and of Leyden as a reference: groups, choices, keys, and their comments.

Neither Hydra nor torch is imported: files are read, nothing is composed and no class is imported.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ...base import limited_yaml
from ...base.errors import refuse
from ...base.paths import shorten_path
from .group_choices import group_choices
from .yaml_comments import Commented, Key, read_comments

ROOT = "train"
_UNLISTED = ("_target_", "_partial_", "defaults")
"""Keys of building and composition, which are not listed."""
_SOURCE = re.compile(r"\[\w[\w. ]*\]")
"""Start of a topology's comment that cites the source of a figure."""


@dataclass(frozen=True)
class ReferenceEntry:
    """A key in one file: `choice` is GROUP=NAME, "" for the root file."""

    choice: str
    name: str
    value: Any
    comment: str


class Library:
    """YAML files of both search folders, the user's first, as in composition."""

    def __init__(self, config_dir: str | None = None):
        self._folders = [Path(config_dir)] if config_dir is not None and Path(config_dir).is_dir() else []
        self._folders.append(Path(str(resources.files("leyden.conf"))))
        self.groups = {**group_choices(config_dir), **self._nested_groups()}
        """Names of the choices by group."""
        self._read: dict[Path, Commented] = {}

    def _nested_groups(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for folder in self._folders:
            for file in folder.glob("*/*/*.yaml"):
                found.setdefault(str(file.parent.relative_to(folder)), set()).add(file.stem)
        return {group: sorted(found[group]) for group in sorted(found)}

    def path(self, name: str) -> Path | None:
        """The file of GROUP/CHOICE, or of the root."""
        return next((file for folder in self._folders if (file := folder / f"{name}.yaml").is_file()), None)

    def file(self, name: str) -> Commented:
        """Keys and comments of GROUP/CHOICE, or of the root; empty if there is no such file.

        Raises:
            ConfigError: invalid YAML.
        """
        path = self.path(name)
        if path is None:
            return Commented(())
        if path not in self._read:
            try:
                self._read[path] = read_comments(limited_yaml.read(path))
            except yaml.YAMLError as error:
                raise refuse(shorten_path(path), f"is not valid YAML: {str(error).splitlines()[0]}") from None
        return self._read[path]

    def keys(self, group: str, choice: str) -> dict[str, Key]:
        """Keys of a choice by dotted name in the whole config, including those of the files that it is based on."""
        file = self.file(f"{group}/{choice}")
        prefix = "" if file.is_global or group == "experiment" else f"{group.replace('/', '.')}."
        found: dict[str, Key] = {}
        for name in _defaults(file):
            if isinstance(name, str) and name != choice and name in self.groups.get(group, []):
                found |= self.keys(group, name)
        return found | {f"{prefix}{key}": value for key, value in file.keys.items() if key != "defaults"}

    def target(self, group: str, choice: str) -> str:
        """Import path of the class that a choice names, or ""."""
        key = self.keys(group, choice).get(f"{group.replace('/', '.')}._target_")
        return str(key.value) if key else ""

    def default_choices(self, *more: Commented) -> dict[str, Any]:
        """The choice of each group by the root's defaults list, then by those of `more`."""
        chosen: dict[str, Any] = {}
        for item in (item for file in (self.file(ROOT), *more) for item in _defaults(file)):
            if isinstance(item, Mapping):
                chosen.update({str(key).split()[-1].lstrip("/"): value for key, value in item.items()})
        return chosen

    def entries(self, group: str, choice: str) -> list[ReferenceEntry]:
        """Entries of a choice: keys with a value or a class."""
        keys = self.keys(group, choice).items()
        return [
            ReferenceEntry(f"{group}={choice}", name, key.value, self._explanation(name, key, group, choice))
            for name, key in keys
            if _is_listed(name, key) and name != group
        ]

    def root_entries(self, under: str = "") -> list[ReferenceEntry]:
        """Entries of the root file, or those below one of its keys."""
        keys = self.file(ROOT).keys.items()
        below = [(name, key) for name, key in keys if not under or name.startswith(f"{under}.")]
        return [ReferenceEntry("", name, key.value, key.comment) for name, key in below if _is_listed(name, key)]

    def every_entry(self) -> Iterator[ReferenceEntry]:
        """Entries of the root file and of all choices except experiments, whose keys are repeated."""
        yield from self.root_entries()
        for group, choices in self.groups.items():
            for choice in choices if group != "experiment" else []:
                yield from self.entries(group, choice)

    def _explanation(self, name: str, key: Key, group: str, choice: str) -> str:
        """Comment on a key: of its own file, of the root, or of another choice for the same class."""
        own = "" if _SOURCE.match(key.comment) else key.comment
        if own and not key.inherited:
            return own
        root = self.file(ROOT).keys.get(name)
        comment = (root.comment if root else "") or own or self._comment_elsewhere(name, group, choice)
        return "; ".join(part for part in (comment, key.comment if key.comment != comment else "") if part)

    def _comment_elsewhere(self, name: str, group: str, choice: str) -> str:
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


def _is_listed(name: str, key: Key) -> bool:
    if isinstance(key.value, Mapping) and key.value:
        return "_target_" in key.value and "." in name
    return name.rpartition(".")[2] not in _UNLISTED
