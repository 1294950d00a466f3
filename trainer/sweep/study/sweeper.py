"""Hydra sweeper of hydra/sweeper=optuna."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from .outcome import TrialOutcome
from .plan import StudyPlan


class TrialFolders(Protocol):
    """Folders of a sweep, as the sweeper needs them."""

    def folder_of(self, number: int) -> Path: ...


class OptunaSweeper(Sweeper):
    """Sweeper that asks Optuna for trials and tells it their results (ask and tell, Akiba et al. 2019).

    `n_jobs` trials are asked for at once and launched as one batch; the next batch is asked for when all of them have
    ended.

    Args:
        plan: of the study.
        folders: of the sweep.
    """

    def __init__(self, plan: StudyPlan, folders: TrialFolders):
        self._plan = plan
        self._folders = folders

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._config = config
        plugins: Any = Plugins.instance()
        self._launcher: Launcher = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> None:
        """Run the study to its end. The space is the plan's, made of the same arguments."""
        self._plan.open(Path(str(self._config.hydra.sweep.dir)))
        while batch := self._plan.next_batch():
            results = self._launcher.launch(list(batch.values()), min(batch))
            for number, result in zip(batch, results, strict=True):
                failed = result.status is not JobStatus.COMPLETED
                metric = self._plan.metric.name
                outcome = (
                    TrialOutcome("failed") if failed else TrialOutcome.of_run(self._folders.folder_of(number), metric)
                )
                self._plan.tell(number, outcome)
        self._plan.write_results(self._plan.journal.path.parent)
