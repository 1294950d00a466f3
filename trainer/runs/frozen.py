"""The frozen config of a run as plain values. No schema, no torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.paths import absolute
from ..base.untrusted_file import DamagedFile
from .folder import CHANGES, FROZEN
from .renamed import with_new_names
from .untrusted_yaml import looks_harmless, read_yaml

_REMEDY = "remove the file: the run then has the config with which it began"


def frozen_values(run_dir: Path) -> dict[str, Any]:
    """The run's config as plain values: the frozen one, then what each `leyden resume` changed, in order.

    Raises:
        DamagedFile: one of the two files is damaged.
        OSError: it cannot be read.
    """
    values = _first_values(run_dir)
    for changed in changes_of(run_dir):
        for key, value in changed.items():
            *parents, last = key.split(".")
            node: Any = values
            for parent in parents:
                node = node.get(parent)
                if not isinstance(node, dict):
                    raise DamagedFile(run_dir / CHANGES, f"it changes {key}, and {parent} holds no keys in this run")
            node[last] = value
        moved = any(key.partition(".")[0] in ("topology", "strategy") for key in changed)
        if moved and "processes" not in changed:  # resume.yaml edited by hand: computed again
            values.pop("processes", None)
    return with_new_names(values)


def values_when_frozen(run_dir: Path) -> dict[str, Any]:
    """The config with which the run began, as plain values. Raises as `frozen_values`."""
    return with_new_names(_first_values(run_dir))


def _first_values(run_dir: Path) -> dict[str, Any]:
    values: Any = read_yaml(run_dir / FROZEN)
    if not isinstance(values, dict):
        raise DamagedFile(run_dir / FROZEN, "it holds no keys")
    return values


def changes_of(run_dir: Path) -> list[dict[str, Any]]:
    """Keys and values changed by each `leyden resume` of the run, newest last.

    Raises:
        DamagedFile: resume.yaml is damaged.
    """
    file = run_dir / CHANGES
    items = read_yaml(file) if os.path.lexists(file) else []  # a broken link is no run without changes
    if not isinstance(items, list):
        raise DamagedFile(file, "it must be a list of changes", _REMEDY)
    for item in items:
        changed = item.get("changed") if isinstance(item, dict) else None
        if not isinstance(changed, dict) or not all(isinstance(key, str) for key in changed):
            raise DamagedFile(file, "each change must be `changed: {key: value}`", _REMEDY)
    return [item["changed"] for item in items]


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
    pipeline = frozen_values(run_dir).get("pipeline")
    return [] if pipeline is None else trial_folders(run_dir, pipeline["trials"])


def trial_folders(run_dir: Path, trials: Sequence[str]) -> list[Path]:
    return [absolute(run_dir / trial) for trial in trials]
