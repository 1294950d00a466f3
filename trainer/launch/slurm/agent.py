"""`python -m leyden.trainer.launch.slurm.agent RUN VERB [CHECKPOINT]`: what srun starts, one on each node of a job."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from ...checkpoint_names import saved
from ...config import load
from ...ended import changed_since_end, end_of
from ...slurm_jobs import STOP_REQUESTED
from ...summary import mark_failed
from .. import start_here
from ..attempt import Job
from ..meeting import Rendezvous
from ..node import follow, lead_nodes, take_part
from ..signals_heard import Signals
from ..store import listening_socket
from ..worker import EXIT_CODES
from .meeting_place import WAIT_S, found, own_address, published
from .script import script_path

_OF_THE_AGENT = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
"""What Slurm says of its tasks, which are the agents: libraries in the workers would take it for their own rank."""


def main(run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """This node's part of a run. Returns its exit code, 2 for what only building the run's parts could show."""
    for name in _OF_THE_AGENT:
        os.environ.pop(name, None)
    if verb != "eval" and (run_dir / STOP_REQUESTED).exists():
        # asked for while the job was on its way back into the queue
        return EXIT_CODES["preempted"]
    job = Job(load(run_dir), run_dir, verb, checkpoint)
    job = replace(job, checkpoint=starting_point(job))
    ended = end_of(run_dir, job.config, job.checkpoint, changed_since_end(run_dir)) if verb != "eval" else None
    if ended is not None:
        # queued again, after its end: by Slurm, which had lost a node, or by hand
        print(f"nothing is left to train: the run {ended}", flush=True)
        return EXIT_CODES["done"]
    try:
        if job.config.topology.nodes == 1:
            return start_here(job.config, run_dir, verb, job.checkpoint)
        return take_part(job, _part)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if _node() == 0 and verb != "eval":
            mark_failed(run_dir, str(error), -1)
        return 2


def _part(job: Job, signals: Signals) -> int:
    if _node() != 0:
        return follow(job, found(job.run_dir, signals), signals)
    with listening_socket(own_address(job.config)) as listening, published(job.run_dir, listening):
        host, port = listening.getsockname()[:2]
        return lead_nodes(job, Rendezvous(host, port, WAIT_S, replaceable=False), listening, signals)


def starting_point(job: Job) -> Path | None:
    """The checkpoint to start from; None: the newest whole one.

    Where the user went back to an older checkpoint, those that are newer and were there before the job belong to a
    history that was given up.
    """
    if job.checkpoint is None or job.verb == "eval":
        return job.checkpoint
    submitted = script_path(job).stat().st_mtime_ns
    fresh = [path for path in saved(job.run_dir) if path.stat().st_mtime_ns > submitted]
    return fresh[0] if fresh else job.checkpoint


def _node() -> int:
    return int(os.environ["SLURM_NODEID"])


if __name__ == "__main__":
    folder, verb, checkpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.exit(main(folder, verb, Path(checkpoint) if checkpoint else None))
