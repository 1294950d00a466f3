"""Slurm's own commands, what they know of jobs, asked for all at once, and telling it to end one. No torch."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from .pipeline.membership import pipeline_of

SUBMITTED = "slurm.json"
STOP_REQUESTED = "stop_requested"
"""A file in a run's folder: a job whose run has it is not queued again."""
_PATIENCE_S = 30
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED", "RESIZING"}
_CLUSTER = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
"""Variables that say how Slurm is reached, not which job this is."""


def outside_any_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a job that this process runs in has left there: a job inherits it from sbatch."""
    return {name: value for name, value in environment.items() if name in _CLUSTER or not name.startswith("SLURM_")}


def answer(*command: str, patience_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm's prints.

    Raises:
        FileNotFoundError: there is none on this machine.
        subprocess.TimeoutExpired: it does not answer within patience_s.
    """
    environment = outside_any_job(os.environ)
    return subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False, env=environment)


@dataclass(frozen=True)
class Job:
    """A job, as Slurm tells."""

    id: str
    state: str
    reason: str

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def runs(self) -> bool:
        return self.state in _RUNNING

    @property
    def active(self) -> bool:
        """Whether it is in Slurm's queue."""
        return self.waits or self.runs


@dataclass(frozen=True)
class Submission:
    """A run that was handed to Slurm."""

    run_dir: Path
    job_id: str
    """Of an array's task 123_4."""
    at: float
    """Seconds since the epoch."""


def submission_of(run_dir: Path) -> Submission | None:
    """The newest that trains a run: its own, or that of the pipeline which its model is trained in; None: there was
    none."""
    found = [_submission(folder) for folder in (run_dir, pipeline_of(run_dir)) if folder is not None]
    return max((one for one in found if one is not None), key=lambda one: one.at, default=None)


def _submission(run_dir: Path) -> Submission | None:
    try:
        told = json.loads((run_dir / SUBMITTED).read_text())
        at = datetime.fromisoformat(told["submitted_at"]).timestamp() if "submitted_at" in told else 0.0
        return Submission(run_dir, str(told["job_id"]), at)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def known(ids: Iterable[str]) -> dict[str, Job]:
    """What Slurm says of jobs, those that it has forgotten left out: one call of squeue, one of sacct for the rest."""
    wanted = sorted(set(ids))
    found = _asked(["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"], wanted)
    rest = [job for job in wanted if job not in found]
    accounted = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason"]
    return {**found, **_asked(accounted, rest)}


def _asked(command: Sequence[str], ids: Sequence[str]) -> dict[str, Job]:
    """Nothing where Slurm is not here, does not answer, or knows none of them (squeue calls that an error)."""
    if not ids:
        return {}
    try:
        told = answer(*command, f"--jobs={','.join(ids)}", patience_s=_PATIENCE_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = [line.split("|") for line in told.splitlines()]
    # "CANCELLED by 1000"
    jobs = [Job(line[0].strip(), line[1].split()[0], line[2]) for line in lines if len(line) >= 3 and line[1].strip()]
    return {job.id: job for job in jobs if job.id in ids}


def cancel(job: Job) -> str | None:
    """End a job: at once where it waits, by SIGTERM to its steps where it runs. Returns what went wrong."""
    signal = ["--signal=TERM"] if job.runs else []
    try:
        done = answer("scancel", *signal, job.id, patience_s=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None
