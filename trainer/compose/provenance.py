"""Where each key of a config was set: file and line of a YAML, or the override."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import yaml

from ..base import limited_yaml
from ..base.paths import shorten_path


class Given(NamedTuple):
    """An override of the command line: its key, and its text."""

    key: str
    typed: str


class Origin:
    """Place where each key was set. Built only to explain an error."""

    def __init__(self, overrides: Iterable[Given]):
        self._overrides = list(overrides)
        self._lines: dict[str, str] = {}
        self._shipped: dict[str, bool] = {}

    def read(self, file: Path, package: str = "", shipped: bool = False) -> None:
        """Record the line of every key of a YAML file; files read later win, as in composition.

        Args:
            shipped: whether the file is one of Leyden's.
        """
        try:
            root = limited_yaml.compose(limited_yaml.read(file))
        except (OSError, ValueError, yaml.YAMLError):
            return
        if root is not None:
            self._note(root, shorten_path(file), package, shipped)

    def _note(self, node: yaml.Node, file: str, key: str, shipped: bool) -> None:
        if key:
            self._lines.setdefault(key, f"{file}:{node.start_mark.line + 1}")
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                child = f"{key}.{name.value}" if key else str(name.value)
                self._lines[child] = f"{file}:{name.start_mark.line + 1}"
                self._shipped[child] = shipped
                self._note(value, file, child, shipped)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._lines[f"{key}.{index}"] = f"{file}:{value.start_mark.line + 1}"
                self._note(value, file, f"{key}.{index}", shipped)

    def where(self, key: str) -> str:
        """The override or the line that set this key, or the nearest node above it."""
        parts = key.split(".")
        for depth in range(len(parts), 0, -1):
            found = self._at(".".join(parts[:depth]))
            if found:
                return found
        return ""

    def sets(self, key: str) -> bool:
        """Whether an override or a file sets this key itself."""
        return key in self._lines or any(given.key == key for given in self._overrides)

    def is_shipped(self, key: str) -> bool:
        """Whether the key's value is from one of Leyden's files: no override and no file of the user's sets it."""
        names = [given.key for given in self._overrides]
        # an override without a dot chooses a group's file; one of a parent key sets everything below it
        by_user = any(name == key or ("." in name and key.startswith(f"{name}.")) for name in names)
        return self._shipped.get(key, False) and not by_user

    def is_chosen(self, group: str) -> bool:
        """Whether an override chooses the file of a group."""
        return any(given.key == group for given in self._overrides)

    def _at(self, key: str) -> str:
        # An override inside a node explains the node only where no file set the node itself.
        for given in reversed(self._overrides):
            if given.key in (key, f"{key}._target_"):
                return f"override '{given.typed}'"
        if key in self._lines:
            return self._lines[key]
        inside = [given for given in self._overrides if given.key.startswith(f"{key}.")]
        return f"override '{inside[-1].typed}'" if inside else ""
