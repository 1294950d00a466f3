"""Slurm's own commands: called, and their answers."""

import os
import subprocess
from collections.abc import Mapping

_CLUSTER = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
"""Variables that say how Slurm is reached, not which job this is."""


def outside_any_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a job that this process runs in has left there: a job inherits it from sbatch."""
    return {name: value for name, value in environment.items() if name in _CLUSTER or not name.startswith("SLURM_")}


def answer(*command: str) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm's prints.

    Raises:
        FileNotFoundError: there is none on this machine.
    """
    return subprocess.run(command, capture_output=True, text=True, check=False, env=outside_any_job(os.environ))


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
