"""The agent of a node in a Slurm job: `python -m leyden.trainer.entrypoints.slurm_agent RUN VERB CHECKPOINT`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config.ended_runs import end_reason, keys_changed_since_end
from ..config.job import JobSpec
from ..launch.agent import first_usable
from ..launch.multi_node import follow, lead, run_node
from ..launch.rendezvous import Rendezvous
from ..launch.signals import ReceivedSignals
from ..launch.slurm.batch_script import folder, script_path
from ..launch.slurm.rendezvous import JOIN_TIMEOUT_S, own_address, publish_address, shared_folder, wait_for_leader
from ..launch.store import listening_socket
from ..launch.worker_group import WorkerSpec
from ..runs.checkpoints import intact
from ..runs.exit_codes import EXIT_CODES
from ..runs.slurm import STOP_REQUESTED
from ..runs.summary import mark_failed
from .start import start_here, worker_spec

_MODULE = "leyden.trainer.entrypoints.slurm_agent"
_AGENT_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
"""Slurm's variables of its tasks, which are the agents: libraries in the workers would read them as their own rank."""


def main(argv: Sequence[str]) -> int:
    """This node's part of a run. Returns its exit code, 2 for a mistake that only building its parts could show."""
    for name in _AGENT_VARIABLES:
        os.environ.pop(name, None)
    run_dir, trains = Path(argv[0]), argv[1] != "eval"
    if trains and (run_dir / STOP_REQUESTED).exists():
        # requested while the job was being requeued
        return EXIT_CODES["preempted"]
    try:
        return _run(argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if _node() == 0 and trains:
            mark_failed(run_dir, str(error), -1)
        return 2


def _run(argv: Sequence[str]) -> int:
    try:
        job = JobSpec.from_argv(argv)
    except OSError as error:
        raise ValueError(f"the run's config cannot be read: {error}") from error
    spec = worker_spec(replace(job, checkpoint=starting_point(job)))
    ended = None if job.is_evaluation else end_reason(spec, keys_changed_since_end(job.run_dir))
    if ended is not None:
        # requeued after its end: by Slurm, which had lost a node, or by hand
        print(f"nothing is left to train: the run {ended}", flush=True)
        return EXIT_CODES["done"]
    code = start_here(spec) if job.config.topology.nodes == 1 else run_node(spec, _part)
    if job.config.doctor is None:
        return code
    from ..diagnostics.doctor.training.run import examine_training

    return examine_training(job.config, job.run_dir, code, lambda folder: [_MODULE, str(folder), "resume", ""])


def _part(job: WorkerSpec, signals: ReceivedSignals) -> int:
    shared = shared_folder(job)
    # it exists unless this is an evaluation, or a doctor's training, which no script has started
    folder(shared).mkdir(parents=True, exist_ok=True)
    if _node() != 0:
        return follow(job, wait_for_leader(shared, signals), signals, shared)
    with listening_socket(own_address(job.config)) as listening, publish_address(job, listening):
        host, port = listening.getsockname()[:2]
        return lead(job, Rendezvous(host, port, JOIN_TIMEOUT_S, replaceable=False), listening, signals, shared)


def starting_point(job: JobSpec) -> Path | None:
    """The checkpoint to start from; None: the newest whole one.

    Where the user resumed from an older checkpoint, newer ones from before the job belong to a history that was given
    up.
    """
    if job.checkpoint is None or job.verb == "eval":
        return job.checkpoint
    submitted = script_path(job).stat().st_mtime_ns
    fresh = [path for path in intact(job.run_dir) if path.stat().st_mtime_ns > submitted]
    return first_usable(fresh) or job.checkpoint


def _node() -> int:
    return int(os.environ["SLURM_NODEID"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
