"""What the launcher asks of Slurm about one job."""

from ...slurm_jobs import answer


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


def cancel(job_id: str) -> None:
    """Take a job out of the queue."""
    answer("scancel", job_id)
