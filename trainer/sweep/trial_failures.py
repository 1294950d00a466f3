"""Failed trials of a sweep: hydra.sweeper.fail_fast, and the mistake that several trials have."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, open_dict

from ..base.errors import ConfigError, refuse
from ..runs.summary import read_summary

KEY = "hydra.sweeper.fail_fast"
"""Ray's word: whether the first failed trial ends the sweep. A key of every sweeper, which none of them is given."""


def add_key(overrides: Sequence[str]) -> list[str]:
    """Overrides in which KEY is added to its node: Hydra's own sweepers have no such key."""
    return [f"++{override}" if override.startswith(f"{KEY}=") else override for override in overrides]


def take_value(sweep: DictConfig) -> bool:
    """The value of KEY, which is removed from a composition.

    Raises:
        ConfigError: it is no truth value.
    """
    with open_dict(sweep.hydra.sweeper):
        value = sweep.hydra.sweeper.pop("fail_fast", False)
    if not isinstance(value, bool):
        raise refuse(KEY, "must be true or false", value, f"{KEY}=true")
    return value


def needs_a_sequence() -> ConfigError:
    """The error of trials that do not run one after the other."""
    text = "ends a sweep whose trials run one after the other, and here all of a batch have been started"
    return refuse(KEY, text, True, f"{KEY}=false")


class TrialFailures:
    """The failures of the trials that have ended.

    Args:
        fail_fast: whether the first one ends the sweep.
    """

    def __init__(self, fail_fast: bool = False):
        self.fail_fast = fail_fast
        self._last: tuple[str, str] | None = None
        """The trial that has ended last, and its exception, if it had one."""
        self._named = ""

    def end_trial(self, trial: str, folder: Path, failed: bool) -> None:
        """Take note of a trial's end.

        Raises:
            SystemExit: it has failed, and ends the sweep.
        """
        error = str(read_summary(folder).get("error", "")) if failed else ""
        if error and self._last is not None and self._last[1] == error != self._named:
            self._named = error
            first_line = error.partition("\n")[0]
            how = "" if self.fail_fast else f"; {KEY}=true ends a sweep at its first failed trial"
            print(f"trials {self._last[0]} and {trial} ended with the same exception, {first_line}{how}", flush=True)
        self._last = (trial, error) if error else None
        if failed:
            self._end_if_asked(trial)

    def refuse_trial(self, trial: str) -> None:
        """Take note of a trial that was not started. Raises as `end_trial`."""
        self._last = None
        self._end_if_asked(trial)

    def _end_if_asked(self, trial: str) -> None:
        if self.fail_fast:
            print(f"trial {trial} has failed and ends the sweep ({KEY}=true)", flush=True)
            raise SystemExit(1)
