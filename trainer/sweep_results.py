"""What came of the trials of a sweep, and the table of it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import frozen_values
from .origin import shown
from .summary import read_summary

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that knows its trials from the start."""

QUEUED = -1
"""In place of the exit code of a trial that Slurm will start."""

WAITING = -2
"""In its place, too: a command on each host will start it."""


@dataclass(frozen=True)
class Trial:
    """A row of the table at the end."""

    name: str
    overrides: Sequence[str]
    code: int
    metric: float
    job: str = ""
    """Its number in Slurm's queue."""
    stop_reason: str = ""
    """Why it was stopped early."""


@dataclass(frozen=True)
class Metric:
    """What trials are compared by: that by which the best checkpoints are kept."""

    name: str = "val/acc"
    mode: str = "max"

    @classmethod
    def of(cls, monitor: Mapping[str, Any]) -> "Metric":
        """That of a config's `callbacks.checkpoint`; the default where it keeps the newest only."""
        return cls(monitor["monitor"], monitor.get("mode") or cls.mode) if monitor.get("monitor") else cls()

    def best_first(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those without a value last."""
        sign = -1.0 if self.mode == "max" else 1.0
        return sorted(trials, key=lambda trial: math.inf if math.isnan(trial.metric) else sign * trial.metric)


def print_table(trials: Sequence[Trial], by: Metric, folder: Path, logs: Sequence[Path] = ()) -> None:
    """How the trials of the sweep in this folder ended, best first, and where those that Slurm will start are seen.

    Args:
        logs: what jobs that train several of them will print.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("trial", "overrides", "status", by.name, title=f"sweep: {shown(folder)}")
    shared = set.intersection(*(set(trial.overrides) for trial in trials)) if len(trials) > 1 else set()
    for trial in by.best_first(trials):
        metric = "" if math.isnan(trial.metric) else f"{trial.metric:.5g}"
        told = {0: "done", 2: "refused", 3: "refused", QUEUED: f"job {trial.job}", WAITING: "waits for its hosts"}
        status = told.get(trial.code, "failed")
        if trial.stop_reason:
            status = f"stopped early: {trial.stop_reason}"
        own = " ".join(override for override in trial.overrides if override not in shared)
        table.add_row(*map(Text, (trial.name, own, status, metric)))
    Console(soft_wrap=True).print(table)
    queued = dict.fromkeys(trial.job.partition("_")[0] for trial in trials if trial.job)
    if queued:
        commands = [f"squeue --jobs {','.join(queued)}", *(f"tail -F {shown(log)}" for log in logs)]
        print("\n  ".join(["follow them with", *commands, f"leyden status {shown(folder)}"]))


def ended(folder: Path, code: int) -> tuple[int, float]:
    """Exit code and metric of a trial whose processes served others, too.

    Args:
        code: theirs.
    """
    status = read_summary(folder).get("status")
    return 0 if status == "done" else code or 1, monitored(folder, frozen_values(folder))


def stop_reason(folder: Path) -> str:
    """Why a trial was stopped early; "" where it was not."""
    return read_summary(folder).get("stop_reason") or ""


def monitored(folder: Path, values: dict[str, Any]) -> float:
    """The metric by which checkpoints are kept, at the end of a run; nan where there is none."""
    checkpoint = values.get("callbacks", {}).get("checkpoint") or {}
    try:
        metrics = json.loads((folder / "summary.json").read_text())["metrics"]
        return float(metrics[checkpoint.get("monitor") or "val/acc"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan
