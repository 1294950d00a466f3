"""Hydra's launcher of that name: the trials of a batch train side by side, their models moving between workers."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, env_override, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ..origin import shown
from ..run_folder import claim, freeze
from ..sweep_results import ended
from .hydra_job import HydraJob, environment_of, hydras_state_kept
from .membership import join
from .plan import Plan
from .start import started


class PipelineLauncher(Launcher):
    """Runs the trials of a batch, which are judged and frozen, in one pipeline.

    What a task function would do, processes of the pipeline do; each job's return value is made of what they left.
    All jobs of a batch begin before the first ends.

    Args:
        plan: has judged the trials.
    """

    def __init__(self, plan: Plan):
        self._plan = plan

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        with hydras_state_kept():
            jobs = [
                HydraJob(self._context, self._config, number, overrides, self._task)
                for number, overrides in enumerate(job_overrides, initial_job_idx)
            ]
            run_dir = self._frozen([job.folder for job in jobs], initial_job_idx)
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                print(f"trial {number}: {' '.join(filter_overrides(overrides))}")
            print(f"pipeline: {shown(run_dir)}", flush=True)
            with env_override(environment_of(jobs)):
                for job in jobs:
                    job.begin()
                code = started(run_dir)
                return [job.end(ended(job.folder, code)) for job in jobs]

    def _frozen(self, trials: Sequence[Path], first: int) -> Path:
        """The pipeline's folder; with another name where an earlier sweep into the same folder has left one."""
        sweep = Path(str(self._config.hydra.sweep.dir))
        folder = claim(sweep / ("pipeline" if first == 0 else f"pipeline-{first}"), named_by_user=False).folder
        freeze(folder, self._plan.values(trials, folder))
        for trial in trials:
            join(trial, folder)
        return folder
