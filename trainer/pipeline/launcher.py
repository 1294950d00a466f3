"""Hydra's launcher of that name: the trials of a batch train side by side, their models moving between workers."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from ..origin import shown
from ..run_folder import freeze
from ..sweep_results import ended
from .membership import join
from .plan import Plan
from .start import started


class PipelineLauncher(Launcher):
    """Runs the trials of a batch, which are judged and frozen, in one pipeline.

    What a task function would do, processes of the pipeline do; each job's return value is made of what they left.

    Args:
        plan: has judged the trials.
    """

    def __init__(self, plan: Plan):
        self._plan = plan

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context = hydra_context
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        jobs = [self._composed(number, overrides) for number, overrides in enumerate(job_overrides, initial_job_idx)]
        sweep = Path(str(self._config.hydra.sweep.dir))
        folders = [sweep / str(job.hydra.sweep.subdir) for job in jobs]
        run_dir = sweep / ("pipeline" if initial_job_idx == 0 else f"pipeline-{initial_job_idx}")
        run_dir.mkdir()
        freeze(run_dir, self._plan.values(folders))
        for folder in folders:
            join(folder, run_dir)
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            print(f"trial {number}: {' '.join(filter_overrides(overrides))}")
        print(f"pipeline: {shown(run_dir)}", flush=True)
        code = started(run_dir)
        return [self._returned(job, folder, code) for job, folder in zip(jobs, folders, strict=True)]

    def _composed(self, number: int, overrides: Sequence[str]) -> DictConfig:
        composed = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = number
        return composed

    def _returned(self, job: DictConfig, folder: Path, code: int) -> JobReturn:
        """As if Hydra had run it: its `.hydra` and its callbacks are Hydra's own."""
        return run_job(
            hydra_context=self._context,
            task_function=lambda config: ended(folder, code),
            config=job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
