"""Hydra launcher `pipeline`: the trials of a batch train concurrently, their models hopping between workers."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, env_override, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ..base.paths import shorten_path
from ..config.schema import load
from ..runs.folder import claim, freeze, record_pipeline
from .hopping_plan import HoppingPlan
from .hydra_job import HydraJob, job_environment, preserve_hydra_config
from .results import QUEUED, WAITING, trial_result
from .trial_process import STOPPED, run_process


class HoppingLauncher(Launcher):
    """Launcher that runs the validated and frozen trials of a batch as one hopping run.

    The task function is not called: the hopping run's processes do its work, and each job's return value is read from
    the trial's folder. All jobs of a batch begin before the first ends.

    Args:
        plan: has validated the trials.
    """

    def __init__(self, plan: HoppingPlan):
        self._plan = plan

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        with preserve_hydra_config():
            jobs = [
                HydraJob(self._context, self._config, number, overrides, self._task)
                for number, overrides in enumerate(job_overrides, initial_job_idx)
            ]
            run_dir = self._freeze([job.folder for job in jobs], initial_job_idx)
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                print(f"trial {number}: {' '.join(filter_overrides(overrides))}")
            print(f"pipeline: {shorten_path(run_dir)}", flush=True)
            with env_override(job_environment(jobs)):
                for job in jobs:
                    job.begin()
                code = run_hopping(run_dir)
                return [job.end(trial_result(job.folder, code)) for job in jobs]

    def _freeze(self, trials: Sequence[Path], first: int) -> Path:
        """Freeze the hopping run; returns its folder, numbered if an earlier sweep has left one."""
        sweep = Path(str(self._config.hydra.sweep.dir))
        folder = claim(sweep / ("pipeline" if first == 0 else f"pipeline-{first}"), named_by_user=False).folder
        freeze(folder, self._plan.values(trials, folder))
        for trial in trials:
            record_pipeline(trial, folder)
        return folder


def run_hopping(run_dir: Path) -> int:
    """Run a frozen hopping run to its end, unless its processes are started elsewhere.

    Returns:
        The exit code of its processes; QUEUED: it is to be submitted to Slurm; WAITING: a command on each host will
        start it.

    Raises:
        SystemExit: it was stopped by a signal, with its code.
    """
    topology = load(run_dir).topology
    if topology.launcher == "slurm":
        return QUEUED
    if topology.launcher == "node":
        print(f"on each of the {topology.nodes} hosts, HOST being one of them and the same for all:")
        print(f"  leyden node --rendezvous HOST:29400 {shorten_path(run_dir)}", flush=True)
        return WAITING
    # "resume" at the first start, too: a run that preflight refuses is not removed, and `leyden resume SWEEP` finds it
    code = run_process(run_dir, "resume")
    if code in STOPPED:
        raise SystemExit(code)
    return code
