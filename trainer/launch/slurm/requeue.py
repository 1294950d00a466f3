"""The end of a job's script: `python -m leyden.trainer.launch.slurm.requeue RUN VERB CODE`.

A run that was told to stop, and one that lost a node, is queued again, once each time, in the same job.
"""

import json
import sys
from pathlib import Path

from ...checkpoint_names import saved, step_of
from ...config import trials_in
from ...run_folder import write_whole
from ...slurm_jobs import STOP_REQUESTED, answer
from .commands import makes_room, own_number, state_of
from .queue import REQUEUES
from .script import folder

GOES_ON = (75, 143, 137)
"""Exit codes of srun: told to stop, and saved; told before there was anything to save; an agent was killed, and not by
its run: its node is gone, or out of memory."""
_RUNS = ("RUNNING", "SIGNALING")
"""The second for as long as a node has not yet answered to a signal that was sent to the job."""


def main(run_dir: Path, verb: str, code: int) -> int:
    """Queue the job again where it should be. Returns the code that the job ends with."""
    if code not in GOES_ON or verb == "eval":
        return code
    job, before = own_number(), _steps_before(run_dir)
    trials = trials_in(run_dir)
    step = sum(_step(run) for run in trials or [run_dir])
    counted = f"step {step}" + (f" (the sum over its {len(trials)} trials)" if trials else "")
    why_not = _why_not(run_dir, job) or _stands(job, step, before, counted)
    if why_not:
        print(f"job {job} is not queued again: {why_not}", flush=True)
        return code
    print(f"job {job} is queued again, to go on from {counted}", flush=True)
    write_whole(folder(run_dir) / REQUEUES, json.dumps([*before, step]) + "\n")
    done = answer("scontrol", "requeue", job)
    if done.returncode:
        print(f"job {job} could not be queued again: {done.stderr.strip()}", file=sys.stderr, flush=True)
    return code


def _step(run_dir: Path) -> int:
    """Of the newest checkpoint."""
    return max((step_of(path) for path in saved(run_dir)), default=0)


def _why_not(run_dir: Path, job: str) -> str:
    if (run_dir / STOP_REQUESTED).exists():
        return "its run was asked to stop"
    state = state_of(job)
    if state not in _RUNS:
        # cancelled, or on its way back into the queue by Slurm's own doing
        return f"Slurm has it {state or 'gone'}"
    return ""


def _stands(job: str, step: int, before: list[int], counted: str) -> str:
    # where Slurm itself takes the nodes away it will not do so for ever
    if before and step <= before[-1] and not makes_room(job):
        return f"it has made no step since it was queued again at {counted}"
    return ""


def _steps_before(run_dir: Path) -> list[int]:
    """The step at each time that this job was queued again here."""
    path = folder(run_dir) / REQUEUES
    return json.loads(path.read_text()) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
