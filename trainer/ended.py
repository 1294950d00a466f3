"""Runs that have come to their end: what ended them, and what has to be raised before they go on. No torch."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from .checkpoint_names import LAST, step_of
from .config import Config, changes_of, load
from .errors import refuse
from .origin import shown
from .summary import read_summary
from .time_limit import as_text, seconds_of

EPOCHS, STEPS, TIME = "trainer.max_epochs", "trainer.max_steps", "trainer.max_time"


def refuse_ended(run_dir: Path, config: Config, checkpoint: Path | None, changed: Collection[str]) -> None:
    """
    Args:
        config: what the run would go on with.
        checkpoint: the one that was named; from an older one than the last a run trains on, ended or not.
        changed: keys that are changed for the resumption.

    Raises:
        ConfigError: the run has ended, and nothing would be trained.
    """
    reason = end_of(run_dir, config, checkpoint, changed)
    if reason is not None:
        raise refuse("RUN", reason, shown(run_dir), _remedy(run_dir, config))


def end_of(run_dir: Path, config: Config, checkpoint: Path | None, changed: Collection[str]) -> str | None:
    """Where and why the run ended, and what to do about it; None where it can go on. Arguments as `refuse_ended`."""
    if config.doctor is not None:
        return None
    if config.pipeline is not None:
        trials = config.pipeline.folders(run_dir)
        done = all(read_summary(trial).get("status") == "done" for trial in trials)
        return f"all its {len(trials)} trials have ended; raise {EPOCHS} of one of them" if done else None
    summary = read_summary(run_dir)
    # a file of another name says what it is only when it is read
    older = checkpoint is not None and checkpoint.name != LAST and step_of(checkpoint) < summary.get("steps", 0)
    if summary.get("status") != "done" or older:
        return None
    if config.trainer.fast_dev_run:
        return "ended after its one step (trainer.fast_dev_run), and saved nothing to go on from"
    reached = list(_limits_reached(config, summary))
    if reached:
        where = ", ".join(at for _, at in reached)
        return f"ended at {where}; raise {' and '.join(key for key, _ in reached)}"
    reason = summary.get("stop_reason")
    if reason is not None and reason.startswith(TIME):
        return None if TIME in changed else f"ended at step {summary['steps']}: {reason}; raise {TIME}"
    if reason is None or {EPOCHS, STEPS} & set(changed):
        return None
    where = f"ended at epoch {summary['epochs']}, where a callback stopped it early: {reason}"
    return f"{where}\n{EPOCHS}, given anew, trains on until it is stopped again"


def changed_since_end(run_dir: Path) -> list[str]:
    """Keys that the newest `leyden resume` has changed, where that was after the run's end."""
    changes, summary = run_dir / "resume.yaml", run_dir / "summary.json"
    if not changes.exists() or (summary.exists() and changes.stat().st_mtime_ns < summary.stat().st_mtime_ns):
        return []
    return list(changes_of(run_dir)[-1])


def _limits_reached(config: Config, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The key of each limit that leaves nothing to train, and how far the run came by it."""
    if summary["epochs"] >= config.trainer.max_epochs:
        yield EPOCHS, f"epoch {summary['epochs']}"
    if -1 < config.trainer.max_steps <= summary["steps"]:
        yield STEPS, f"step {summary['steps']}"


def _remedy(run_dir: Path, config: Config) -> str:
    """A command that trains on."""
    if config.pipeline is not None:
        trial = config.pipeline.folders(run_dir)[0]
        return _remedy(trial, load(trial))
    if config.trainer.fast_dev_run:
        return "a new run, with trainer.fast_dev_run=false"
    summary = read_summary(run_dir)
    if str(summary.get("stop_reason")).startswith(TIME) and config.trainer.max_time is not None:
        return f"leyden resume {shown(run_dir)} {TIME}={as_text(2 * seconds_of(config.trainer.max_time))}"
    raised = {EPOCHS: 2 * max(config.trainer.max_epochs, summary["epochs"]), STEPS: 2 * summary["steps"]}
    keys = [key for key, _ in _limits_reached(config, summary)] or [EPOCHS]
    return f"leyden resume {shown(run_dir)} {' '.join(f'{key}={raised[key]}' for key in keys)}"
