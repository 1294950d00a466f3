"""The end of a job's script: `python -m leyden.trainer.launch.slurm.requeue RUN VERB CODE`.

A run that was told to stop, and one that lost a node, is queued again, once each time, in the same job.
"""

import json
import os
import sys
from pathlib import Path

from ...checkpoint_names import saved, step_of
from ...run_folder import write_whole
from ...slurm_jobs import STOP_REQUESTED, answer
from .commands import state_of
from .queue import REQUEUES
from .script import folder

GOES_ON = (75, 143, 137)
"""Exit codes of srun: told to stop, and saved; told before there was anything to save; an agent was killed, and not by
its run: its node is gone, or out of memory."""


def main(run_dir: Path, verb: str, code: int) -> int:
    """Queue the job again where it should be. Returns the code that the job ends with."""
    if code not in GOES_ON or verb == "eval":
        return code
    job, before = os.environ["SLURM_JOB_ID"], _steps_before(run_dir)
    step = max((step_of(path) for path in saved(run_dir)), default=-1)
    why_not = _why_not(run_dir, state_of(job), step, before)
    if why_not:
        print(f"job {job} is not queued again: {why_not}", flush=True)
        return code
    print(f"job {job} is queued again, to go on from step {max(step, 0)}", flush=True)
    write_whole(folder(run_dir) / REQUEUES, json.dumps([*before, step]) + "\n")
    done = answer("scontrol", "requeue", job)
    if done.returncode:
        print(f"job {job} could not be queued again: {done.stderr.strip()}", file=sys.stderr, flush=True)
    return code


def _why_not(run_dir: Path, state: str | None, step: int, before: list[int]) -> str:
    if (run_dir / STOP_REQUESTED).exists():
        return "its run was asked to stop"
    if state != "RUNNING":
        # cancelled, or on its way back into the queue by Slurm's own doing
        return f"Slurm has it {state or 'gone'}"
    if before and step <= before[-1]:
        return f"it has made no step since it was queued again at step {max(step, 0)}"
    return ""


def _steps_before(run_dir: Path) -> list[int]:
    """The step at each time that this job was queued again here."""
    path = folder(run_dir) / REQUEUES
    return json.loads(path.read_text()) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
