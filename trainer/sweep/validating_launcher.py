"""Launcher around those of Hydra: all trials of a batch are validated and frozen before the first one starts."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ..base.errors import ConfigError


class TrialRegistry(Protocol):
    """Trials of a sweep, as the launcher needs them."""

    def validate(self, batch: Sequence[Sequence[str]], first: int) -> Mapping[int, ConfigError]: ...
    def make_folder(self) -> None: ...
    def freeze_trials(self) -> None: ...
    def add_refused(self, number: int, overrides: Sequence[str], error: ConfigError) -> JobReturn: ...
    def add_result(self, number: int, overrides: Sequence[str], result: JobReturn) -> None: ...


class ValidatingLauncher(Launcher):
    """Launcher that validates all trials of a batch before the wrapped launcher starts the first."""

    def __init__(self, launcher: Launcher, trials: TrialRegistry):
        self._launcher = launcher
        self._trials = trials

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """The wrapped launcher is already set up."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        trials = dict(enumerate(job_overrides, initial_job_idx))
        invalid = self._trials.validate(job_overrides, initial_job_idx)
        self._trials.make_folder()
        self._trials.freeze_trials()
        results = {number: self._trials.add_refused(number, trials[number], error) for number, error in invalid.items()}
        for is_invalid, run in groupby(trials, key=invalid.__contains__):
            numbers = list(run)
            if is_invalid:
                continue
            launched = self._launcher.launch([trials[number] for number in numbers], numbers[0])
            for number, result in zip(numbers, launched, strict=True):
                self._trials.add_result(number, trials[number], result)
                results[number] = result
        return [results[number] for number in trials]
