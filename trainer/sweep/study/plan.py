"""Plan of a sweep by Optuna: metric, search space, study, and what its trials get from it."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from optuna.trial import TrialState

from ...base.atomic_file import write_atomically
from ...base.errors import raise_all, refuse
from ...base.paths import shorten_path
from ...compose.provenance import Origin
from ...compose.rules.logged_metrics import unlogged_metric
from ...config.schema import Config
from ...runs.study import JOURNAL, PRUNING
from .components import SamplerFactory, pruner_node, without_leftovers
from .journal import StudyJournal
from .outcome import TrialOutcome
from .search_space import SearchSpace
from .settings import settings_of


class StudyPlan:
    """What a sweep by Optuna does, checked before its first trial.

    Args:
        sweep: its composition.
        folder: of the sweep.
        goes_on: whether the sweep continues the study in its folder.
        origin: of the composition's values.

    Raises:
        ConfigError: settings, search space or metric are wrong; the folder has a study already.
    """

    def __init__(self, sweep: DictConfig, folder: Path, goes_on: bool, origin: Origin):
        self.settings = settings_of(sweep)
        self.metric = self.settings.compared_by(OmegaConf.select(sweep, "callbacks.checkpoint") or {})
        self.space = SearchSpace.of(self.settings.params, [str(word) for word in sweep.hydra.overrides.task])
        self._samplers = SamplerFactory(without_leftovers("sampler", self.settings.sampler, origin))
        self._samplers.rehearse(self.space.distributions)
        self._pruner = pruner_node(without_leftovers("pruner", self.settings.pruner, origin))
        self._journal: StudyJournal | None = None
        if (folder / JOURNAL).exists():
            self.open(folder)
        if not goes_on and self._journal is not None:
            text = "this folder holds a study already"
            raise refuse("hydra.sweep.dir", text, shorten_path(folder), f"leyden resume {shorten_path(folder)}")

    @property
    def journal(self) -> StudyJournal:
        """The study; opened before the first trial is chosen."""
        assert self._journal is not None
        return self._journal

    def open(self, folder: Path) -> None:
        """Open the study in a folder, a new one if there is none."""
        if self._journal is None:
            self._journal = StudyJournal(folder, self.space, self.metric, self._samplers)

    def settle(self, folder: Path) -> None:
        """Move the study into the sweep's folder, once that is made."""
        if self.journal.path.parent != folder:
            self.journal.move(folder)

    def refuse_hopping(self) -> None:
        """
        Raises:
            ConfigError: trials that hop would be pruned.
        """
        if self._pruner is not None:
            text = "ends a trial from within its own process, and under hydra/launcher=pipeline it has none"
            remedy = "hydra.launcher.early_stopping=halving, or hydra/launcher=basic"
            raise refuse("hydra/sweeper/pruner", text, self._pruner["_target_"].rpartition(".")[2], remedy)

    def check_metric(self, config: Config) -> None:
        """
        Raises:
            ConfigError: a trial's task does not log the metric.
        """
        named = self.settings.metric is not None
        key = "hydra.sweeper.metric" if named else "callbacks.checkpoint.monitor"
        raise_all(unlogged_metric(config, key, self.metric.name))

    def callback(self, number: int, subfolder: str) -> dict[str, Any] | None:
        """Node of the callback by which a trial reports to the study; None where nothing is pruned."""
        if self._pruner is None:
            return None
        return {
            "_target_": PRUNING,
            "journal": os.path.relpath(JOURNAL, subfolder),
            "trial": self.journal.trials[number].number,
            "monitor": self.metric.name,
            "pruner": self._pruner,
        }

    def next_batch(self) -> dict[int, list[str]]:
        """Overrides of the next trials by number, which are consecutive; empty at the end of the study.

        Trials come first that were chosen before the sweep was interrupted, and never ended.
        """
        trials = self.journal.trials
        left = [number for number, trial in sorted(trials.items()) if not trial.state.is_finished()]
        count = min(self.settings.n_jobs, self.settings.n_trials - len(trials))
        if left:
            numbers = [number for at, number in enumerate(left) if number == left[0] + at]
        elif self.journal.exhausted:
            numbers = []
        else:
            first = max(trials, default=-1) + 1
            numbers = list(range(first, first + count))
            for number in numbers:
                self.journal.ask(number)
        return {number: self.space.overrides(self.journal.trials[number].params) for number in numbers}

    def failed_or_open(self) -> dict[int, list[str]]:
        """Overrides of the trials whose outcome the study lacks, or has as a failure, by number."""
        trials = self.journal.trials
        wanted = (TrialState.RUNNING, TrialState.WAITING, TrialState.FAIL)
        return {n: self.space.overrides(trial.params) for n, trial in trials.items() if trial.state in wanted}

    def tell(self, number: int, outcome: TrialOutcome) -> None:
        """Record a trial's outcome in the study."""
        self.journal.tell(number, outcome)

    def write_results(self, folder: Path) -> None:
        """Write optimization_results.yaml, in the form of Hydra's own sweeper, and print the best trial."""
        best = self.journal.best()
        if best is None:
            print("no trial is complete: the study has no best one", flush=True)
            return
        number, trial = best
        results = {"name": "optuna", "best_params": dict(trial.params), "best_value": trial.value, "best_trial": number}
        write_atomically(folder / "optimization_results.yaml", OmegaConf.to_yaml(OmegaConf.create(results)))
        words = " ".join(self.space.overrides(trial.params)[: len(trial.params)])
        print(f"best trial: {number}, {self.metric.name} {trial.value:.5g} ({words})", flush=True)
