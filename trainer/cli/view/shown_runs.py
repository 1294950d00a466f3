"""Runs as `leyden view` shows them: names, hyperparameters, metrics, and how they ended."""

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ...base.printable import printable
from ...base.untrusted_file import DamagedFile
from ...config.hyperparameters import Value, hyperparameters_of, short_title, varied_names
from ...config.schema import Composition
from ...runs.folder import CHANGES, FROZEN
from ...runs.frozen import read_values
from ...runs.status import RUNNING, statuses

EVENTS = "events.out.tfevents."
_LONGEST = 120
"""Characters of a trial's name: it is one of a folder."""


@dataclass
class ShownRun:
    """A folder with event files, or a run without any.

    Args:
        name: in TensorBoard, with a slash between folders.
        parameters: none: it is no run of Leyden, or its config cannot be read.
        swept: the parameters that its sweep varies.
        metrics: names, the one by which checkpoints are kept first.
    """

    folder: Path
    name: str
    parameters: dict[str, Value] = field(default_factory=dict[str, Value])
    swept: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def outcome(self) -> bool | None:
        """Whether it was trained to its end; None as long as it may go on."""
        (found,) = statuses([self.folder])
        if found.state in RUNNING or found.state in ("not started", "interrupted", "preempted"):
            return None
        return found.state in ("done", "stopped early", "pruned")


def find_runs(folders: Mapping[str, Path]) -> Iterator[ShownRun]:
    """Runs at and below some folders, those around others first.

    Args:
        folders: by the name that comes before those of their runs; "": none.
    """
    for around, top in folders.items():
        names = {top: around}
        for path, below, files in os.walk(top):
            folder = Path(path)
            name = names[folder]
            if FROZEN in files or any(file.startswith(EVENTS) for file in files):
                run = _read_run(folder, "/".join(filter(None, (name.rpartition("/")[0], folder.name))))
                name = run.name
                yield run
            below[:] = sorted(each for each in below if not each.startswith("."))
            names |= {folder / each: f"{name}/{each}" if name else each for each in below}


def _read_run(folder: Path, name: str) -> ShownRun:
    run = ShownRun(folder, name)
    with suppress(DamagedFile, OSError, ValidationError, ValueError):
        config = _config_of(folder, _changed_at(folder))
        run.parameters, run.swept = config.parameters, config.swept
        run.metrics = _metrics(folder, config.monitor)
        if config.title:
            run.name = f"{name.rpartition('/')[0]}/{config.title}".lstrip("/")
    return run


class _RunConfig(NamedTuple):
    """What a run's config says of the run in a table."""

    parameters: dict[str, Value]
    swept: tuple[str, ...]
    monitor: Any
    title: str
    """Title of a trial; "" if the run is none."""


def _changed_at(folder: Path) -> tuple[int, ...]:
    """Times at which the files of the config were changed."""
    return tuple(file.stat().st_mtime_ns for name in (FROZEN, CHANGES) if (file := folder / name).exists())


@cache  # a folder is looked through every few seconds, and may hold thousands of runs
def _config_of(folder: Path, changed_at: tuple[int, ...]) -> _RunConfig:
    values = read_values(folder)
    composition = Composition.model_validate(values.get("composition") or {})
    title = printable(short_title(composition, folder)).replace("/", "_")[:_LONGEST] if composition.swept else ""
    monitor: Any = values
    for key in ("callbacks", "checkpoint", "monitor"):
        monitor = monitor.get(key) if isinstance(monitor, Mapping) else None
    return _RunConfig(hyperparameters_of(values, composition), tuple(varied_names(composition)), monitor, title)


def _metrics(folder: Path, monitor: Any) -> tuple[str, ...]:
    """Metrics by which runs are compared, as far as they have been logged, the monitored one first."""
    try:
        with (folder / "metrics.csv").open(encoding="utf-8", newline="") as stream:
            logged = next(csv.reader(stream), [])
    except (OSError, ValueError):
        return ()
    phases = ("val", "test", "train")
    names = [name for phase in phases for name in sorted(logged) if name.split("/")[0] == phase]
    return tuple(sorted(names, key=lambda name: name != monitor))
