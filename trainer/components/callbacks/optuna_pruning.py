"""Pruning of a trial by Optuna: its metric is reported to the study of the sweep, whose pruner may end it."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ...base.errors import NotLogged
from ...core.callback_contract import CallbackContract
from ...core.communication.plain_values import broadcast_value
from ...core.state import RunState
from ...runs.study import JOURNAL, STUDY
from ...runs.summary import PRUNED

if TYPE_CHECKING:
    from optuna.trial import Trial

log = logging.getLogger(__name__)


class OptunaPruning(CallbackContract):
    """Reports `monitor` at every validation and asks the pruner whether the trial goes on.

    The steps of Optuna's pruners are validations here, counted from 1: trials are compared at the same validation,
    whatever their batch sizes. The sweep adds the callback to its trials (hydra/sweeper/pruner).

    Args:
        journal: of the study, relative to the run folder, in a folder above it.
        trial: number of the trial in the study.
        monitor: metric that the study optimizes.
        pruner: Optuna's.

    Raises:
        ValueError: the journal is elsewhere.
        NotLogged: at a validation, if the task does not log the metric.
    """

    def __init__(self, journal: str, trial: int, monitor: str, pruner: Any):
        if set(Path(journal).parts[:-1]) != {".."} or Path(journal).name != JOURNAL:
            raise ValueError(f"journal={journal} must be {JOURNAL} in a folder above the run")
        self.journal = journal
        self.trial = trial
        self.monitor = monitor
        self.pruner = pruner
        self.validations = 0
        self._connected: Trial | None = None
        self._reported: set[int] = set()

    @override
    def on_fit_start(self, state: RunState) -> None:
        if state.fabric.is_global_zero and not state.evaluates_only:
            self._connected = self._trial_of((state.run_dir / self.journal).resolve())

    def _trial_of(self, journal: Path) -> "Trial | None":
        """The trial in its study; None for one that is trained again by itself, after its end or without its sweep."""
        if not journal.exists():
            log.info("no pruning: the study %s is not there", journal)
            return None
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
        # the sampler has nothing to choose here; Optuna's default would fit its model to all trials
        sampler = optuna.samplers.RandomSampler()
        study = optuna.load_study(study_name=STUDY, storage=storage, sampler=sampler, pruner=self.pruner)
        of_study = storage.get_study_id_from_name(STUDY)
        trial_id = storage.get_trial_id_from_study_id_trial_number(of_study, self.trial)
        known = storage.get_trial(trial_id)
        if known.state.is_finished():
            log.info("no pruning: the study has this trial's result already")
            return None
        self._reported = set(known.intermediate_values)
        return optuna.trial.Trial(study, trial_id)

    @override
    def on_validation_end(self, state: RunState) -> None:
        if self.monitor not in state.metrics:
            raise NotLogged("hydra.sweeper.metric", self.monitor, state.metrics)
        self.validations += 1
        # the workers' clocks of reading the journal differ: one asks for all
        if broadcast_value(self._is_pruned(state.metrics[self.monitor]), state.fabric.strategy):
            name = type(self.pruner).__name__
            state.stop_reason = f"{PRUNED}{name} at validation {self.validations}"

    def _is_pruned(self, value: float) -> bool:
        if self._connected is None:
            return False
        # after a resumption from a checkpoint the study may have this validation already
        if self.validations not in self._reported:
            self._connected.report(value, self.validations)
        # pruners that compare by NumPy return its bool
        return bool(self._connected.should_prune())

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.validations = state["validations"]
