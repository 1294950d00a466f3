"""Sweepers that choose trials by the results of others: what they are told, and what a failed trial is to them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf, open_dict

from .errors import refuse
from .origin import Origin
from .sweep_results import BASIC, Metric, Trial

_DIRECTIONS = {"max": "maximize", "min": "minimize"}


class TrialFailed(RuntimeError):
    """In place of a failed trial's result."""


def chooses(sweep: DictConfig) -> bool:
    """Whether the sweeper of a sweep's composition chooses trials by the results of others."""
    return (OmegaConf.select(sweep, "hydra.sweeper") or {}).get("_target_") != BASIC


def suit(sweep: DictConfig, origin: Origin) -> None:
    """Have a sweeper look for what the best checkpoints are kept by, and live with trials that fail.

    Args:
        sweep: its composition, which is changed where the user says nothing.
        origin: of its keys.

    Raises:
        ConfigError: the user tells it to look for the opposite, or for several things.
    """
    sweeper = sweep.hydra.sweeper
    by = Metric.of(OmegaConf.select(sweep, "callbacks.checkpoint") or {})
    with open_dict(sweeper):
        if "direction" in sweeper:
            if origin.sets("hydra.sweeper.direction"):
                _check_direction(sweeper.direction, by)
            sweeper.direction = _DIRECTIONS[by.mode]
        if "max_failure_rate" in sweeper and not origin.sets("hydra.sweeper.max_failure_rate"):
            sweeper.max_failure_rate = 1.0


def _check_direction(given: Any, by: Metric) -> None:
    directions = list(given) if OmegaConf.is_list(given) else [given]
    names = [str(one.name if isinstance(one, Enum) else one) for one in directions]
    if names == [_DIRECTIONS[by.mode]]:
        return
    text = f"trials are compared by {by.name}, mode {by.mode}, as their checkpoints are (callbacks.checkpoint)"
    remedy = "leave it out, or callbacks.checkpoint.monitor=METRIC callbacks.checkpoint.mode=MODE"
    raise refuse("hydra.sweeper.direction", text, names[0] if len(names) == 1 else names, remedy)


def answer(sweeper: Sweeper, result: JobReturn, trial: Trial) -> None:
    """Make a trial's result what its sweeper understands."""
    result.status, result.return_value = JobStatus.COMPLETED, trial.metric
    if trial.code and not isinstance(sweeper, BasicSweeper):
        # a metric of its earlier epochs, or nan, would count as a value
        result.status, result.return_value = JobStatus.FAILED, TrialFailed(f"trial {trial.name} has failed")


def refused(trial: Trial) -> JobReturn:
    """The result of a trial that was not started."""
    return JobReturn(overrides=list(trial.overrides), status=JobStatus.FAILED)


@contextmanager
def its_end(trials: list[Trial]) -> Iterator[None]:
    """A sweeper may give up where trials failed, or have nothing to choose from: no reason to hide what they gave."""
    try:
        yield
    except (TrialFailed, ValueError) as error:
        if not any(trial.code for trial in trials):
            raise
        print(f"the sweep has ended: {error}", file=sys.stderr, flush=True)
