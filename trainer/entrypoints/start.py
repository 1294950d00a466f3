"""Start of a run from its frozen config: in this process where one is enough, else by Leyden's agent."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.system_errors import system_failure
from ..config.evaluation_data import refuse_without_model
from ..config.job import JobSpec
from ..config.target_policy.untrusted_runs import refuse_other_trials
from ..hardware.comm_env import apply
from ..launch.roles import is_alone
from ..runs.lease import hold_lease
from ..runs.summary import mark_failed
from ..runs.system_failure import exit_code_of

if TYPE_CHECKING:
    from ..launch.worker_group import WorkerSpec


def start(run_dir: Path, verb: str = "train", checkpoint: Path | None = None) -> int:
    """The job of a frozen run, done (`start_job`)."""
    return start_job(JobSpec.load(run_dir, verb, checkpoint))


def start_job(job: JobSpec) -> int:
    """Run the workers until they end.

    Returns:
        0 done; 1 failed; 3 refused by the preflight; 75 preempted and saved; 130 interrupted; 143 terminated without
        a checkpoint.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
            Or another process of this host leads the run already.
    """
    config = job.config
    if config.launcher == "node":
        raise ValueError(f"this run is started on each of its hosts: leyden node --rendezvous HOST:PORT {job.run_dir}")
    if config.launcher == "slurm":
        raise ValueError(f"this run is started by Slurm: leyden resume {job.run_dir}")
    if config.launcher == "external" and (not job.is_evaluation or config.topology.nodes > 1):
        text = "another program starts the processes of this run"
        raise ValueError(f"{text}: {job.verb} it with topology.launcher=local")
    return start_here(job)


def start_here(job: JobSpec, listens: bool = True) -> int:
    """Run the workers of a run that has one node, which is this machine. Returns and raises as `start_job` does.

    Args:
        listens: whether signals are handled; False: of a run in this process, whose signals are its user's.
    """

    def lead() -> int:
        if job.is_evaluation:
            refuse_without_model(job.config)
            return _start(job, listens)
        with hold_lease(job.run_dir):
            return _start_and_record(job, listens)

    return exit_code_of(lead, job.run_dir)


def _start_and_record(job: JobSpec, listens: bool) -> int:
    """Start like `_start`, and record a failure of the host in this process, which no worker can record."""
    try:
        return _start(job, listens)
    except Exception as error:
        failure = system_failure(error, job.run_dir)
        if failure is not None:
            mark_failed(job.run_dir, str(failure), rank=-1)
        raise


def _start(job: JobSpec, listens: bool) -> int:
    # a restart needs a process of its own
    if is_alone(job.config) and job.config.topology.max_restarts == 0:
        from .worker import run_in_process

        _refuse_other_trials(job)
        return run_in_process(job, listens)
    apply(job.config.topology, None if job.is_evaluation else job.run_dir)
    from ..launch.agent import launch

    return launch(worker_spec(job))


def worker_spec(job: JobSpec) -> "WorkerSpec":
    """The job with the kind of worker group that its config asks for."""
    # not at the top: a run in this process needs none of them
    from ..hopping.worker_group import HoppingWorkerGroup
    from ..launch.elastic import ElasticWorkerGroup
    from ..launch.worker_group import WorkerGroup, WorkerSpec

    _refuse_other_trials(job)
    hops = job.config.pipeline is not None
    group = HoppingWorkerGroup if hops else ElasticWorkerGroup if job.config.elastic else WorkerGroup
    return WorkerSpec(job.config, job.run_dir, job.verb, job.checkpoint, worker_group=group)


def _refuse_other_trials(job: JobSpec) -> None:
    if job.config.pipeline is not None:
        refuse_other_trials(job.run_dir, job.config.pipeline.folders(job.run_dir))


if __name__ == "__main__":
    from .fork_server import prepare

    try:
        job = JobSpec.from_argv(sys.argv[1:])
        prepare(job.config)
        code = start_job(job)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
