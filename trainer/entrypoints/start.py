"""Start of a run from its frozen config: in this process where one is enough, else by Leyden's agent."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.system_errors import system_failure
from ..config.evaluation_data import refuse_without_model
from ..config.schema import Config, load
from ..config.target_policy.untrusted_runs import refuse_other_trials
from ..hardware.comm_env import apply
from ..launch.roles import is_alone
from ..runs.lease import hold_lease
from ..runs.summary import mark_failed
from ..runs.system_failure import exit_code_of

if TYPE_CHECKING:
    from ..launch.worker_group import JobSpec


def start(run_dir: Path, verb: str = "train", checkpoint: Path | None = None) -> int:
    """Run the workers until they end.

    Args:
        run_dir: holds config.yaml.
        verb: train | resume | eval.
        checkpoint: for resume and eval; None: the newest whole one.

    Returns:
        0 done; 1 failed; 3 refused by the preflight; 75 preempted and saved; 130 interrupted; 143 terminated without
        a checkpoint.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
            Or another process of this host leads the run already.
    """
    run_dir = run_dir.absolute()
    config = load(run_dir)
    if config.launcher == "node":
        raise ValueError(f"this run is started on each of its hosts: leyden node --rendezvous HOST:PORT {run_dir}")
    if config.launcher == "slurm":
        raise ValueError(f"this run is started by Slurm: leyden resume {run_dir}")
    if config.launcher == "external" and (verb != "eval" or config.topology.nodes > 1):
        raise ValueError(f"another program starts the processes of this run: {verb} it with topology.launcher=local")
    return start_here(config, run_dir, verb, checkpoint)


def start_here(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, listens: bool = True) -> int:
    """Run the workers of a run that has one node, which is this machine. Returns and raises as `start` does.

    Args:
        listens: whether signals are handled; False: of a run in this process, whose signals are its user's.
    """

    def lead() -> int:
        if verb == "eval":
            refuse_without_model(config)
            return _start(config, run_dir, verb, checkpoint, listens)
        with hold_lease(run_dir):
            return _start_and_record(config, run_dir, verb, checkpoint, listens)

    return exit_code_of(lead, run_dir)


def _start_and_record(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, listens: bool) -> int:
    """As `_start`; where the host fails this process, which no worker can record, it is recorded."""
    try:
        return _start(config, run_dir, verb, checkpoint, listens)
    except Exception as error:
        failure = system_failure(error, run_dir)
        if failure is not None:
            mark_failed(run_dir, str(failure), rank=-1)
        raise


def _start(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, listens: bool) -> int:
    # a restart needs a process of its own
    if is_alone(config) and config.topology.max_restarts == 0:
        from .worker import run_in_process

        _refuse_other_trials(config, run_dir)
        return run_in_process(config, run_dir, verb, checkpoint, listens)
    apply(config.topology, run_dir if verb != "eval" else None)
    from ..launch.agent import launch

    return launch(job_of(config, run_dir, verb, checkpoint))


def job_of(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> "JobSpec":
    """The job of a run, with the kind of worker group that its config asks for."""
    # not at the top: a run in this process needs none of them
    from ..hopping.worker_group import HoppingWorkerGroup
    from ..launch.elastic import ElasticWorkerGroup
    from ..launch.worker_group import JobSpec, WorkerGroup

    _refuse_other_trials(config, run_dir)
    group = HoppingWorkerGroup if config.pipeline is not None else ElasticWorkerGroup if config.elastic else WorkerGroup
    return JobSpec(config, run_dir, verb, checkpoint, group)


def _refuse_other_trials(config: Config, run_dir: Path) -> None:
    if config.pipeline is not None:
        refuse_other_trials(run_dir, config.pipeline.folders(run_dir))


if __name__ == "__main__":
    from .fork_server import prepare

    run_dir, verb, checkpoint = [*sys.argv[1:], *["", "train", ""][len(sys.argv) - 1 :]]
    try:
        prepare(load(Path(run_dir)))
        code = start(Path(run_dir), verb, Path(checkpoint) if checkpoint else None)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
