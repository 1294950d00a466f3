"""Hydra's launcher of that name: the trials of a batch train side by side, their models moving between workers."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, env_override, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ..origin import shown
from ..run_folder import claim, freeze
from ..sweep_results import WAITING, ended
from ..trial_process import STOPPED, run_process
from .hydra_job import HydraJob, environment_of, hydras_state_kept
from .plan import Plan


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
                code = self._run(run_dir)
                return [job.end(ended(job.folder, code)) for job in jobs]

    def _frozen(self, trials: Sequence[Path], first: int) -> Path:
        """The folder of a pipeline, where another of the same batch may be from an earlier sweep."""
        sweep = Path(str(self._config.hydra.sweep.dir))
        folder = claim(sweep / ("pipeline" if first == 0 else f"pipeline-{first}"), named_by_user=False).folder
        freeze(folder, self._plan.values(trials))
        return folder

    def _run(self, run_dir: Path) -> int:
        """Returns the exit code of the processes, or WAITING.

        Raises:
            SystemExit: they were told to stop, with their code.
        """
        topology = self._plan.topology
        if topology["launcher"] == "node":
            print(f"on each of the {topology['nodes']} hosts, HOST being one of them and the same for all:")
            print(f"  leyden node --rendezvous HOST:29400 {shown(run_dir)}", flush=True)
            return WAITING
        code = run_process(run_dir)
        if code in STOPPED:
            raise SystemExit(code)
        return code
