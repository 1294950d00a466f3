"""Results of the trials of a sweep, and their table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.paths import shorten_path
from ..runs.frozen import read_values
from ..runs.summary import PRUNED, read_summary

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""Hydra's grid sweeper, whose trials are known from the start."""

QUEUED = -1
"""Value in place of the exit code of a trial that is a job of Slurm."""

WAITING = -2
"""Value in place of the exit code of a trial that a command on each host starts."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    name: str
    overrides: Sequence[str]
    code: int
    metric: float
    job: str = ""
    """Id of its Slurm job."""
    stop_reason: str = ""
    """Why it was stopped early."""


@dataclass(frozen=True)
class Metric:
    """Metric that trials are compared by: the one by which the best checkpoints are kept."""

    name: str = "val/acc"
    mode: str = "max"

    @classmethod
    def of(cls, monitor: Mapping[str, Any]) -> "Metric":
        """Metric of a config's `callbacks.checkpoint`; the default if that keeps only the newest."""
        return cls(monitor["monitor"], monitor.get("mode") or cls.mode) if monitor.get("monitor") else cls()

    def best_first(self, trials: Iterable[Trial]) -> list[Trial]:
        """Trials sorted by the metric, those without a value last."""
        sign = -1.0 if self.mode == "max" else 1.0
        return sorted(trials, key=lambda trial: math.inf if math.isnan(trial.metric) else sign * trial.metric)


def print_table(trials: Sequence[Trial], by: Metric, folder: Path, logs: Sequence[Path] = ()) -> None:
    """Print the results, best first, and the commands that follow the jobs of Slurm.

    Args:
        logs: output files of jobs that train several trials.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("trial", "overrides", "status", by.name, title=f"sweep: {shorten_path(folder)}")
    shared = set.intersection(*(set(trial.overrides) for trial in trials)) if len(trials) > 1 else set()
    for trial in by.best_first(trials):
        metric = "" if math.isnan(trial.metric) else f"{trial.metric:.5g}"
        statuses = {0: "done", 2: "refused", 3: "refused", QUEUED: f"job {trial.job}", WAITING: "waits for its hosts"}
        status = statuses.get(trial.code, "failed")
        if trial.stop_reason.startswith(PRUNED):
            status = trial.stop_reason
        elif trial.stop_reason:
            status = f"stopped early: {trial.stop_reason}"
        own = " ".join(override for override in trial.overrides if override not in shared)
        table.add_row(*map(Text, (trial.name, own, status, metric)))
    Console(soft_wrap=True).print(table)
    queued = dict.fromkeys(trial.job.partition("_")[0] for trial in trials if trial.job)
    if queued:
        commands = [f"squeue --jobs {','.join(queued)}", *(f"tail -F {shorten_path(log)}" for log in logs)]
        print("\n  ".join(["follow them with", *commands, f"leyden status {shorten_path(folder)}"]))


def trial_result(folder: Path, code: int) -> tuple[int, float]:
    """Exit code and metric of a trial that shared its processes with others.

    Args:
        code: exit code of the processes.
    """
    status = read_summary(folder).get("status")
    return 0 if status == "done" else code or 1, final_metric(folder, read_values(folder))


def stop_reason(folder: Path) -> str:
    """Reason for which a trial was stopped early, or ""."""
    return read_summary(folder).get("stop_reason") or ""


def final_metric(folder: Path, values: dict[str, Any]) -> float:
    """Final value of the metric by which checkpoints are kept; nan without one."""
    checkpoint = values.get("callbacks", {}).get("checkpoint") or {}
    return metric_of(folder, checkpoint.get("monitor") or "val/acc")


def metric_of(folder: Path, name: str) -> float:
    """Final value of a metric; nan without one."""
    try:
        return float(read_summary(folder)["metrics"][name])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return math.nan
