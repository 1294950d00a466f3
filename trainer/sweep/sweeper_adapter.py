"""Adaptive sweepers, which choose trials by the results of others: their settings, and results of failed trials."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf, open_dict

from ..base.errors import refuse
from ..compose.hydra_compat import basic_sweeper
from ..compose.provenance import Origin
from .results import BASIC, Metric, Trial

_DIRECTIONS = {"max": "maximize", "min": "minimize"}


class TrialFailed(RuntimeError):
    """Result of a failed trial."""


def is_adaptive(sweep: DictConfig) -> bool:
    """Whether a composition's sweeper chooses trials by the results of others."""
    return (OmegaConf.select(sweep, "hydra.sweeper") or {}).get("_target_") != BASIC


def configure_sweeper(sweep: DictConfig, origin: Origin) -> None:
    """Set a sweeper's direction to that of the checkpoints' metric, and let it tolerate failed trials.

    Args:
        sweep: composition of the sweep; keys that the user sets are not changed.
        origin: of its keys.

    Raises:
        ConfigError: the user sets the opposite direction, or several.
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


def set_result(sweeper: Sweeper, result: JobReturn, trial: Trial) -> None:
    """Convert a trial's result to what its sweeper expects."""
    result.status, result.return_value = JobStatus.COMPLETED, trial.metric
    if trial.code and not isinstance(sweeper, basic_sweeper()):
        # Optuna would take nan, or the metric of an earlier epoch, for the trial's value
        result.status, result.return_value = JobStatus.FAILED, TrialFailed(f"trial {trial.name} has failed")


def refused_result(trial: Trial) -> JobReturn:
    """Result of a trial that was not started."""
    return JobReturn(overrides=list(trial.overrides), status=JobStatus.FAILED)


@contextmanager
def tolerate_failures(trials: list[Trial]) -> Iterator[None]:
    """Print a sweeper's error after failed trials instead of raising it: the results of the others are still shown."""
    try:
        yield
    except (TrialFailed, ValueError) as error:
        if not any(trial.code for trial in trials):
            raise
        print(f"the sweep has ended: {error}", file=sys.stderr, flush=True)
