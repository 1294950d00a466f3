"""Completed runs: the limit that ended them, and the keys to raise before they can continue. No torch."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..base.errors import refuse
from ..base.paths import shorten_path
from ..base.time_limit import as_text, seconds_of
from ..runs.checkpoints import LAST, step_of
from ..runs.folder import CHANGES
from ..runs.frozen import changes_of
from ..runs.summary import SUMMARY, read_summary
from .job import JobSpec
from .schema import Config, load

EPOCHS, STEPS, TIME = "trainer.max_epochs", "trainer.max_steps", "trainer.max_time"
RANGE_TEST = "lr_range_test"
"""The callback's name in every run of `leyden find lr`."""


def refuse_ended(job: JobSpec, changed: Collection[str]) -> None:
    """Refuse to resume a completed run in which nothing would be trained.

    Args:
        job: from a checkpoint older than the last a run always continues.
        changed: keys that the resumption changes.

    Raises:
        ConfigError: the run is complete.
    """
    reason = end_reason(job, changed)
    if reason is not None:
        raise refuse("RUN", reason, shorten_path(job.run_dir), _remedy(job.run_dir, job.config))


def end_reason(job: JobSpec, changed: Collection[str]) -> str | None:
    """Where and why the run ended, and the key to raise; None if it can continue. Arguments as `refuse_ended`."""
    config, run_dir, checkpoint = job.config, job.run_dir, job.checkpoint
    if config.doctor is not None:
        return None
    if config.pipeline is not None:
        trials = config.pipeline.folders(run_dir)
        done = all(read_summary(trial).get("status") == "done" for trial in trials)
        return f"all its {len(trials)} trials have ended; raise {EPOCHS} of one of them" if done else None
    summary = read_summary(run_dir)
    # the step of a checkpoint with another name is known only once it is read
    older = checkpoint is not None and checkpoint.name != LAST and step_of(checkpoint) < summary.get("steps", 0)
    if summary.get("status") != "done" or older:
        return None
    if config.trainer.fast_dev_run:
        return "ended after its one step (trainer.fast_dev_run), and saved nothing to continue from"
    if RANGE_TEST in config.callbacks:
        return "is a finished range test of learning rates, which ends with lr_range_test.json and saves no weights"
    reached = list(_limits_reached(config, summary))
    if reached:
        where = ", ".join(at for _, at in reached)
        return f"ended at {where}; raise {' and '.join(key for key, _ in reached)}"
    reason = summary.get("stop_reason")
    if reason is not None and reason.startswith(TIME):
        return None if TIME in changed else f"ended at step {summary['steps']}: {reason}; raise {TIME}"
    if reason is None or {EPOCHS, STEPS} & set(changed) or any(key.startswith("callbacks.") for key in changed):
        return None
    where = f"ended at epoch {summary['epochs']}, where a callback stopped it early: {reason}"
    return f"{where}\n{EPOCHS}, set again, or another patience trains on until it is stopped again"


def keys_changed_since_end(run_dir: Path) -> list[str]:
    """Keys changed by the newest `leyden resume`, if that was after the run's end."""
    changes, summary = run_dir / CHANGES, run_dir / SUMMARY
    if not changes.exists() or (summary.exists() and changes.stat().st_mtime_ns < summary.stat().st_mtime_ns):
        return []
    return list(changes_of(run_dir)[-1])


def _limits_reached(config: Config, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each limit that the run has reached: its key, and the position as text."""
    if summary["epochs"] >= config.trainer.max_epochs:
        yield EPOCHS, f"epoch {summary['epochs']}"
    if -1 < config.trainer.max_steps <= summary["steps"]:
        yield STEPS, f"step {summary['steps']}"


def _remedy(run_dir: Path, config: Config) -> str:
    """A command that continues the training."""
    if config.pipeline is not None:
        trial = config.pipeline.folders(run_dir)[0]
        return _remedy(trial, load(trial))
    if config.trainer.fast_dev_run:
        return "a new run, with trainer.fast_dev_run=false"
    if RANGE_TEST in config.callbacks:
        return "a new test: leyden find lr ..."
    summary = read_summary(run_dir)
    if str(summary.get("stop_reason")).startswith(TIME) and config.trainer.max_time is not None:
        return f"leyden resume {shorten_path(run_dir)} {TIME}={as_text(2 * seconds_of(config.trainer.max_time))}"
    raised = {EPOCHS: 2 * max(config.trainer.max_epochs, summary["epochs"]), STEPS: 2 * summary["steps"]}
    keys = [key for key, _ in _limits_reached(config, summary)] or [EPOCHS]
    return f"leyden resume {shorten_path(run_dir)} {' '.join(f'{key}={raised[key]}' for key in keys)}"
