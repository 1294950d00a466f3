"""What the launcher asks of Slurm about one job."""

import os
import re

from ...slurm_jobs import answer


def own_number() -> str:
    """The number of the job that this process is in, as Slurm's commands take it for this job alone.

    A job of an array has a number of its own, too, but one of them bears the whole array's: what is asked of that one
    is asked of all.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def state_of(job_id: str) -> str | None:
    """Slurm's word for where a job stands, such as PENDING, RUNNING, COMPLETING; None where it is in no queue."""
    return _queued(job_id, "%T")


def reason_of(job_id: str) -> str | None:
    """Slurm's word for why a job waits, such as Priority or Resources; None where it is in no queue."""
    return _queued(job_id, "%r")


def _queued(job_id: str, wanted: str) -> str | None:
    try:
        done = answer("squeue", "--noheader", "--jobs", job_id, "--format", wanted)
    except FileNotFoundError:
        return None
    return done.stdout.split()[0] if done.returncode == 0 and done.stdout.strip() else None


def makes_room(job_id: str) -> bool:
    """Whether Slurm has told a running job to leave its nodes to a more urgent one."""
    return bool(re.search(r"\bPreemptTime=\d", answer("scontrol", "--oneliner", "show", "job", job_id).stdout))


def cancel(job_id: str) -> None:
    """Take a job out of the queue."""
    answer("scancel", job_id)
