"""Study of a sweep in a journal on disk, which Optuna and the trials append to (optuna.storages.JournalStorage)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from ...base.atomic_file import atomic_file, naming
from ...base.errors import ConfigError, refuse
from ...base.paths import shorten_path
from ...runs.study import JOURNAL, STUDY
from ..results import Metric
from .components import SamplerFactory
from .outcome import TrialOutcome
from .search_space import SearchSpace

_NUMBER, _SPACE, _METRIC = "leyden_trial", "leyden_space", "leyden_metric"
"""User attributes: of a trial, the number in its folder's name; of the study, what it optimizes over, and what."""
_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
_DIRECTIONS: dict[str, Literal["maximize", "minimize"]] = {"max": "maximize", "min": "minimize"}


class StudyJournal:
    """Study whose every trial has the number of its run folder.

    Args:
        folder: of the journal; a study in it is continued, and only read until a trial is asked for.

    Raises:
        ConfigError: the study there is of another search space or metric, or its journal is damaged.
    """

    def __init__(self, folder: Path, space: SearchSpace, metric: Metric, samplers: SamplerFactory):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._metric, self._samplers = space, metric, samplers
        self.exhausted = False
        """Whether every point of the space has been tried, of samplers that enumerate it."""
        self._open(folder)

    def _open(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        described = {_SPACE: self._space.describe_space(), _METRIC: [self._metric.name, self._metric.mode]}
        if not self.path.exists():
            storage = JournalStorage(JournalFileBackend(str(self.path)))
            direction = _DIRECTIONS[self._metric.mode]
            self._study = optuna.create_study(storage=storage, study_name=STUDY, direction=direction)
            for key, value in described.items():
                self._study.set_user_attr(key, value)
            return
        try:
            storage = JournalStorage(JournalFileBackend(str(self.path)))
            self._study = optuna.load_study(storage=storage, study_name=STUDY)
            self._refuse_other(self._study.user_attrs, described)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            text = f"its study cannot be read: {error}"
            raise refuse("SWEEP", text, shorten_path(self.path), "a new sweep, in another folder") from None

    def _refuse_other(self, kept: Mapping[str, Any], described: Mapping[str, Any]) -> None:
        if kept[_METRIC] != described[_METRIC]:
            text = f"the study in {shorten_path(self.path.parent)} optimizes {' '.join(kept[_METRIC])}"
            raise refuse("hydra.sweeper.metric", text, self._metric.name, "hydra.sweep.dir=NEW_FOLDER")
        keys = {*kept[_SPACE], *described[_SPACE]}
        other = sorted(key for key in keys if kept[_SPACE].get(key) != described[_SPACE].get(key))
        if other:
            was = "; ".join(f"{key} in {_readable(kept[_SPACE].get(key))}" for key in other)
            text = f"the study in {shorten_path(self.path.parent)} has another search space: {was}"
            value = ", ".join(_readable(described[_SPACE].get(key)) for key in other)
            raise refuse(other[0], text, value, "the same space, or hydra.sweep.dir=NEW_FOLDER")

    def repair(self) -> None:
        """Remove what a killed process or a lost host has left: its lock, and a last line that is not complete.

        To be called by the process that leads the sweep, before any trial appends.
        """
        Path(f"{self.path}.lock").unlink(missing_ok=True)
        with naming(self.path), open(self.path, "r+b") as file:
            text = file.read()
            end = text.rfind(b"\n") + 1
            if end != len(text):
                file.truncate(end)
                file.flush()
                os.fsync(file.fileno())

    def move(self, folder: Path) -> None:
        """Move the journal to another folder."""
        before = self.path
        with atomic_file(folder / JOURNAL, "wb") as file:
            file.write(before.read_bytes())
        before.unlink()
        self._open(folder)

    @property
    def trials(self) -> dict[int, FrozenTrial]:
        """Trials by the number of their folders, each in its newest state."""
        found = self._study.get_trials(deepcopy=False)
        return {trial.user_attrs[_NUMBER]: trial for trial in found if _NUMBER in trial.user_attrs}

    def ask(self, number: int) -> FrozenTrial:
        """Choose the trial of a number."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _NUMBER not in trial.user_attrs:  # the sweep was killed before the choice was complete
                self._study.tell(trial.number, state=TrialState.FAIL)
        self._study.sampler = self._samplers.of_trial(number)
        asked = self._study.ask(dict(self._space.distributions))
        asked.set_user_attr(_NUMBER, number)
        return self.trials[number]

    def tell(self, number: int, outcome: TrialOutcome) -> None:
        """Record a trial's outcome. One that has failed and was resumed is recorded again, as a trial of its own."""
        trial, state = self.trials[number], _STATES[outcome.state]
        value = outcome.value if outcome.state == "complete" else None
        if not trial.state.is_finished():
            try:
                self._study.tell(trial.number, value, state=state)
            except RuntimeError as error:  # a sampler that enumerates the space asks a loop of Optuna's own to stop
                if "Study.stop" not in str(error):
                    raise
                self.exhausted = True
        elif trial.state is TrialState.FAIL and state is TrialState.COMPLETE:
            again = create_trial(
                value=value, params=trial.params, distributions=trial.distributions, user_attrs=trial.user_attrs
            )
            self._study.add_trial(again)

    def best(self) -> tuple[int, FrozenTrial] | None:
        """Number and trial of the best value; None if no trial is complete."""
        complete = [each for each in self.trials.items() if each[1].state is TrialState.COMPLETE]
        sign = 1.0 if self._metric.mode == "max" else -1.0
        return max(complete, key=lambda each: sign * (each[1].value or 0.0), default=None)


def _readable(described: str | None) -> str:
    if described is None:
        return "no space"
    node = json.loads(described)
    arguments = ", ".join(f"{name}={value}" for name, value in node["attributes"].items())
    return f"{node['name'].removesuffix('Distribution').lower()}({arguments})"
