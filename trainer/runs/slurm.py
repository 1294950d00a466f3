"""Slurm's commands: states of jobs, queried for all jobs at once, and cancelling. No torch."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..base.untrusted_file import read_json
from .folder import pipeline_of

SUBMITTED = "slurm.json"
STOP_REQUESTED = "stop_requested"
"""File in a run's folder that keeps its job from being requeued."""
_TIMEOUT_S = 30
_USUAL_ARRAY_SIZE = 1001
"""Slurm's default of MaxArraySize."""
_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED", "RESIZING"}
_CLUSTER = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
"""Variables about the connection to Slurm, not about the current job."""


def environment_outside_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of the current job, which sbatch would pass on to a new one."""
    return {name: value for name, value in environment.items() if name in _CLUSTER or not name.startswith("SLURM_")}


def run_command(*command: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands and capture its output.

    Raises:
        FileNotFoundError: this machine does not have the command.
        subprocess.TimeoutExpired: no answer within timeout_s.
    """
    environment = environment_outside_jobs(os.environ)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)


@dataclass(frozen=True)
class SlurmJob:
    """State of a job, by squeue or sacct."""

    id: str
    state: str
    reason: str
    expected_start: str | None = None
    """Expected start of a pending job in local time, 2026-11-24T06:00:00; None while Slurm has not planned it."""

    @property
    def is_pending(self) -> bool:
        return self.state in _PENDING

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING

    @property
    def active(self) -> bool:
        """Whether the job is in Slurm's queue."""
        return self.is_pending or self.is_running


@dataclass(frozen=True)
class Submission:
    """A run submitted to Slurm."""

    run_dir: Path
    job_id: str
    """Id of the job; 123_4 for a task of an array."""
    at: float
    """Seconds since the epoch."""


def submission_of(run_dir: Path) -> Submission | None:
    """The newest submission of a run, or of the pipeline that trains it; None without one."""
    found = [_submission(folder) for folder in (run_dir, pipeline_of(run_dir)) if folder is not None]
    return max((one for one in found if one is not None), key=lambda one: one.at, default=None)


def _submission(run_dir: Path) -> Submission | None:
    try:
        printed = read_json(run_dir / SUBMITTED)
        at = datetime.fromisoformat(printed["submitted_at"]).timestamp() if "submitted_at" in printed else 0.0
        job_id = str(printed["job_id"])
        return Submission(run_dir, job_id, at) if re.fullmatch(r"\d+(_\d+)?", job_id, re.ASCII) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def jobs_by_id(ids: Iterable[str]) -> dict[str, SlurmJob]:
    """States of the jobs that Slurm still knows: one call of squeue, and one of sacct for the rest."""
    wanted = sorted(set(ids))
    found = _query_states(["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%S"], wanted)
    rest = [job for job in wanted if job not in found]
    accounted = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason"]
    return {**found, **_query_states(accounted, rest)}


def _query_states(command: Sequence[str], ids: Sequence[str]) -> dict[str, SlurmJob]:
    """States by one command; empty if Slurm is missing, does not answer, or knows no job (an error of squeue)."""
    if not ids:
        return {}
    try:
        printed = run_command(*command, f"--jobs={','.join(ids)}", timeout_s=_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = [line.split("|") for line in printed.splitlines()]
    jobs = [_job(line) for line in lines if len(line) >= 3 and line[1].strip()]
    return {job.id: job for job in jobs if job.id in ids}


def _job(fields: Sequence[str]) -> SlurmJob:
    """
    Args:
        fields: id, state, reason, and of squeue the start.
    """
    # "CANCELLED by 1000"
    job_id, state, reason = fields[0].strip(), fields[1].split()[0], fields[2]
    start = fields[3].strip() if len(fields) > 3 and state in _PENDING else ""
    is_time = re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", start, re.ASCII) is not None
    return SlurmJob(job_id, state, "" if reason == "None" else reason, start if is_time else None)


def comment_of(folder: Path) -> str:
    """Comment of the job of a run, by which `leyden stop` knows it again."""
    return f"leyden:{folder}"


def folder_of_script(script: Path) -> Path:
    """The folder of a run or a sweep, which has its batch scripts in `slurm/`, those of arrays perhaps deeper."""
    return next((parent.parent for parent in script.parents if parent.name == "slurm"), script.parent)


def folders_of(job_id: str) -> list[Path]:
    """The runs or sweeps that a job in the queue is of, by its comment and its batch script; empty: not known."""
    try:
        shown = run_command("scontrol", "--oneliner", "show", "job", job_id, timeout_s=_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    script = re.search(r" Command=(/.*?) WorkDir=", shown)
    commented = re.search(rf" Comment={comment_of(Path('/'))[:-1]}(/.*?)(?= [A-Z]\w*=|\s*$)", shown)
    scripts = [] if script is None else [folder_of_script(Path(script[1]))]
    return scripts + ([] if commented is None else [Path(commented[1])])


def cancel(job: SlurmJob) -> str | None:
    """End a job: a pending one at once, a running one by SIGTERM to its steps. Returns the error, if any."""
    signal = ["--signal=TERM"] if job.is_running else []
    try:
        done = run_command("scancel", *signal, job.id, timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None


def own_job_id() -> str:
    """The id of this process's job, unambiguous for Slurm's commands.

    Jobs of an array also have plain numbers, but one of these is the whole array's, and a command with it reaches all.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def state_of(job_id: str) -> str | None:
    """Slurm's state of a queued job, such as PENDING, RUNNING, COMPLETING; None if it is not in the queue."""
    return _queued_states(job_id, "%T")


def reason_of(job_id: str) -> str | None:
    """Slurm's reason why a job is pending, such as Priority or Resources; None if it is not in the queue."""
    return _queued_states(job_id, "%r")


def _queued_states(job_id: str, wanted: str) -> str | None:
    try:
        done = run_command("squeue", "--noheader", "--jobs", job_id, "--format", wanted)
    except FileNotFoundError:
        return None
    return done.stdout.split()[0] if done.returncode == 0 and done.stdout.strip() else None


def max_array_size() -> int:
    """Slurm's MaxArraySize: the largest task number of an array plus 1; 0 where there are no arrays."""
    try:
        shown = run_command("scontrol", "show", "config", timeout_s=_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    return int(found[1]) if found else _USUAL_ARRAY_SIZE


def is_being_preempted(job_id: str) -> bool:
    """Whether Slurm is preempting a running job."""
    return bool(re.search(r"\bPreemptTime=\d", run_command("scontrol", "--oneliner", "show", "job", job_id).stdout))


def dequeue(job_id: str) -> None:
    """Remove a job from the queue."""
    run_command("scancel", job_id)
