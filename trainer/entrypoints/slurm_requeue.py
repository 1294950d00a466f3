"""Last step of a batch script: `python -m leyden.trainer.entrypoints.slurm_requeue RUN VERB CODE [STATE PREEMPTED]`.

It requeues the job of a run that was preempted, or that lost a node. In a container, which may have none of Slurm's
commands, it is given the job's state and leaves the requeue to its script.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ..base.atomic_file import write_atomically
from ..base.untrusted_file import DamagedFile, read_json
from ..launch.slurm.batch_script import folder
from ..launch.slurm.job_steps import REQUEUE
from ..launch.slurm.submit import REQUEUES
from ..runs.checkpoints import intact, step_of
from ..runs.frozen import trials_in
from ..runs.slurm import STOP_REQUESTED, is_being_preempted, own_job_id, run_command, state_of

REQUEUED_CODES = (75, 143, 137)
"""Exit codes of srun: preempted and saved; terminated before there was anything to save; an agent was killed from
outside its run: its node is lost, or out of memory."""
_RUNNING = ("RUNNING", "SIGNALING")
"""Slurm's states of a running job; the second until all nodes have acknowledged a signal to the job."""


@dataclass(frozen=True)
class QueriedJob:
    """What the batch script, outside of the container, has found out about its job."""

    state: str
    is_being_preempted: bool


def main(run_dir: Path, verb: str, code: int, queried: QueriedJob | None = None) -> int:
    """Requeue the job unless there is a reason not to.

    Args:
        queried: None: Slurm's commands are called here.

    Returns:
        The exit code of the job; REQUEUE where the script is to requeue it.
    """
    if code not in REQUEUED_CODES or verb == "eval":
        return code
    job = own_job_id()
    try:
        before = _steps_at_requeues(run_dir)
    except DamagedFile as error:
        print(f"job {job} is not queued again: {error}", flush=True)
        return code
    trials = trials_in(run_dir)
    step = sum(_step(run) for run in trials or [run_dir])
    counted = f"step {step}" + (f" (the sum over its {len(trials)} trials)" if trials else "")
    why_not = _stopped_state(run_dir, queried.state if queried is not None else state_of(job))
    if not why_not and before and step <= before[-1]:
        # preempted by Slurm for another job: that ends, so a start without progress is no loop
        preempted = queried.is_being_preempted if queried is not None else is_being_preempted(job)
        why_not = "" if preempted else f"it has made no step since it was queued again at {counted}"
    if why_not:
        print(f"job {job} is not queued again: {why_not}", flush=True)
        return code
    print(f"job {job} is queued again, to go on from {counted}", flush=True)
    write_atomically(folder(run_dir) / REQUEUES, json.dumps([*before, step]) + "\n")
    if queried is not None:
        return REQUEUE
    done = run_command("scontrol", "requeue", job)
    if done.returncode:
        print(f"job {job} could not be queued again: {done.stderr.strip()}", file=sys.stderr, flush=True)
    return code


def _step(run_dir: Path) -> int:
    """The step of the newest checkpoint that was not found damaged."""
    return max((step_of(path) for path in intact(run_dir)), default=0)


def _stopped_state(run_dir: Path, state: str | None) -> str:
    if (run_dir / STOP_REQUESTED).exists():
        return "its run was asked to stop"
    if state not in _RUNNING:
        # cancelled, or requeued by Slurm itself
        return f"Slurm has it as {state or 'unknown'}"
    return ""


def _steps_at_requeues(run_dir: Path) -> list[int]:
    """The run's step at each previous requeue of this job."""
    path = folder(run_dir) / REQUEUES
    steps = read_json(path) if path.exists() else []
    if not isinstance(steps, list) or not all(type(step) is int for step in steps):
        raise DamagedFile(path, "it holds no steps")
    return steps


if __name__ == "__main__":
    run_folder, verb, code, *found = sys.argv[1:]
    queried = QueriedJob(found[0], bool(found[1])) if found else None
    sys.exit(main(Path(run_folder), verb, int(code), queried))
