"""Config groups and their choices by the names of folders and files. Standard library alone, as --help needs it."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

NO_GROUPS = frozenset({"planner"})
"""Folders of files that no config composes."""


def group_choices(config_dir: str | None = None) -> dict[str, list[str]]:
    """The config groups and the YAML files in each, the user's included."""
    roots: list[Traversable] = [resources.files("leyden.conf")]
    if config_dir is not None and Path(config_dir).is_dir():
        roots.append(Path(config_dir))
    found: dict[str, set[str]] = {}
    for root in roots:
        for group in root.iterdir():
            if group.is_dir() and not group.name.startswith(("_", ".")) and group.name not in NO_GROUPS:
                files = {file.name.removesuffix(".yaml") for file in group.iterdir() if file.name.endswith(".yaml")}
                found.setdefault(group.name, set()).update(files)
    return {group: sorted(found[group]) for group in sorted(found) if found[group]}
