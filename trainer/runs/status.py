"""State of a run, from the files in its folder and Slurm's state of its job. No torch; nothing is changed."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.paths import shorten_path
from ..base.untrusted_file import DamagedFile, read_mapping
from .checkpoints import intact, step_of
from .folder import FROZEN, pipeline_of
from .frozen import check_files
from .goodput import goodput
from .lease_record import Lease, is_alive, lease_of
from .sessions import read_recorded
from .slurm import STOP_REQUESTED, SlurmJob, jobs_by_id, submission_of
from .summary import PROGRESS, read_summary, was_pruned

DAMAGED = "damaged"
RUNNING = ("running", "starting", "stopping", "queued")
"""States of a run that is active or queued."""
_LONG_AGO_S = 60.0
_PROGRESS_TYPES = {
    "step": int, "total_steps": int, "epoch": int, "time": float, "samples_per_second": float, "seconds_left": float,
}  # fmt: skip


@dataclass(frozen=True)
class RunStatus:
    """One row of `leyden status`."""

    run: str
    state: str
    """running, starting, stopping, queued; done, stopped early, pruned, preempted, interrupted, failed, refused, slow,
    "crashed (no exit status)", "not started"; "damaged": `why` names the file."""
    step: int | None = None
    """Optimizer steps done."""
    total_steps: int | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    why: str = ""
    """The error, or further information."""
    goodput: float | None = None
    """Share of the run's life that trained what was kept, see `goodput`."""
    checkpoint: str | None = None
    """File of the newest checkpoint, relative to the run's folder."""
    expected_start: str | None = None
    """When Slurm expects to start a queued run, in local time."""


def status_of(run_dir: Path, jobs: Mapping[str, SlurmJob]) -> RunStatus:
    """The state of one run.

    Args:
        jobs: Slurm's jobs by id.
    """
    summary, progress = read_summary(run_dir), progress_of(run_dir)
    check_files(run_dir)
    submission, lease = submission_of(run_dir), lease_of(run_dir)
    job = jobs.get(submission.job_id) if submission is not None else None
    active_dir = _active_folder(run_dir, lease, job, submission.run_dir if submission is not None else run_dir)
    status = summary.get("status") if active_dir != run_dir else None  # of one trial of a pipeline that may continue
    if _is_alive(run_dir, lease, job) and status not in ("done", "failed"):
        state, why = _alive(active_dir, summary, progress, lease)
    elif job is not None and job.is_pending and status != "done":
        state, why = "queued", _waiting(job)
    else:
        state, why = _end_of(run_dir, summary, lease, job)
    newest = next(iter(intact(run_dir)), None)
    last = step_of(newest) if newest is not None else None
    running = state == "running"
    step = _step(state, summary, progress, last)
    return RunStatus(
        shorten_path(run_dir), state, step,
        step if state == "done" else progress.get("total_steps"),
        progress.get("samples_per_second") if running else summary.get("samples_per_second"),
        progress.get("seconds_left") if running else None,
        why, _goodput(summary, run_dir), str(newest.relative_to(run_dir)) if newest is not None else None,
        job.expected_start if job is not None and state == "queued" else None,
    )  # fmt: skip


def _waiting(job: SlurmJob) -> str:
    start = f"; expected to start {job.expected_start.replace('T', ' ')}" if job.expected_start is not None else ""
    return f"Slurm's job {job.id}: {job.reason or job.state}{start}"


def _goodput(summary: dict[str, Any], run_dir: Path) -> float | None:
    try:
        good = goodput(read_recorded(summary, run_dir / PROGRESS))
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):  # somebody else may have written them
        return None
    return None if good is None else good.share


def progress_of(run_dir: Path) -> dict[str, Any]:
    """progress.json; {} where there is none, or it was cut off: it is not flushed to the disk."""
    try:
        return read_mapping(run_dir / PROGRESS, _PROGRESS_TYPES)
    except (OSError, DamagedFile):
        return {}


def _step(state: str, summary: dict[str, Any], progress: dict[str, Any], last: int | None) -> int | None:
    """Steps done. Until the end the summary holds only the step at which the session began."""
    if state in ("done", "stopped early", "pruned", "preempted", "interrupted"):
        return summary.get("steps")
    steps = [step for step in (progress.get("step"), last) if step is not None]
    return max(steps, default=None)


def _active_folder(run_dir: Path, lease: Lease | None, job: SlurmJob | None, submitted: Path) -> Path:
    """The folder of the active pipeline that trains the run, else the run's own.

    Args:
        submitted: the folder that the job runs.
    """
    if job is not None and job.active:
        return submitted
    pipeline = pipeline_of(run_dir)
    led = pipeline is not None and lease is not None and lease_of(pipeline) == lease
    return pipeline if pipeline is not None and led else run_dir


def _is_alive(run_dir: Path, lease: Lease | None, job: SlurmJob | None) -> bool:
    if job is not None and job.active:
        return job.is_running
    # after its job a run may have been resumed without Slurm; only on this host is that certain
    return lease is not None and (job is None or lease.is_local) and is_alive(run_dir, lease)


def _alive(active_dir: Path, summary: dict[str, Any], progress: dict[str, Any], lease: Lease | None) -> tuple[str, str]:
    where = f"process {lease.pid} on {lease.host}" if lease is not None else ""
    if (active_dir / STOP_REQUESTED).exists():
        return "stopping", where
    if summary.get("status") != "running":
        return "starting", where
    ago = time.time() - progress.get("time", time.time())
    return "running", f"{where}; its last step was {ago:.0f} s ago" if ago > _LONG_AGO_S else where


def _end_of(run_dir: Path, summary: dict[str, Any], lease: Lease | None, job: SlurmJob | None) -> tuple[str, str]:
    status, pipeline = summary.get("status"), pipeline_of(run_dir)
    again = f"leyden resume {shorten_path(pipeline.parent if pipeline is not None else run_dir)}"
    if status == "done":
        reason = summary.get("stop_reason")
        if was_pruned(summary):
            return "pruned", str(reason)
        return ("stopped early", reason) if reason else ("done", "")
    if status == "failed":
        rank = summary.get("failed_rank", -1)
        error = str(summary.get("error", ""))
        return "failed", f"rank {rank}: {error}" if rank >= 0 else error
    if status == "slow":
        return status, f"details: {shorten_path(run_dir / 'result.json')}"
    if status is None and lease is None and job is not None and job.state == "CANCELLED":
        return "not started", f"Slurm's job {job.id}: {job.state}; {again}"
    # a dead process whose lease is still there did not end by itself
    if status == "running" or lease is not None or (job is not None and status is None):
        reasons = [f"Slurm's job {job.id}: {job.state}"] if job is not None else []
        if lease is not None:
            reasons.append(f"process {lease.pid} on {lease.host} is dead")
        around = read_summary(pipeline) if pipeline is not None else {}
        if around.get("status") in ("failed", "refused"):
            reasons.append(f"its pipeline {around['status']}: {str(around.get('error', '')).strip()}".splitlines()[0])
        return "crashed (no exit status)", "; ".join([*reasons, again])
    if status is None:
        return "not started", ""
    return str(status), again


def runs_in(folder: Path) -> Iterator[Path]:
    """The run folders at and below a folder, by name; a sweep's trials by number."""
    for path, folders, files in os.walk(folder):
        if FROZEN in files:
            yield Path(path)
            folders.clear()
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_by_number)


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (-1, name)


def statuses(runs: Sequence[Path]) -> list[RunStatus]:
    """States of runs; Slurm is queried once for all of them."""
    jobs = jobs_by_id(one.job_id for one in map(submission_of, runs) if one is not None)
    return [_status_or_damage(run, jobs) for run in runs]


def _status_or_damage(run_dir: Path, jobs: Mapping[str, SlurmJob]) -> RunStatus:
    """The state of one run, which the others are shown without if its files are damaged."""
    try:
        return status_of(run_dir, jobs)
    except DamagedFile as error:
        name = error.path.relative_to(run_dir) if error.path.is_relative_to(run_dir) else error.path
        return RunStatus(shorten_path(run_dir), DAMAGED, why=f"{name}: {error.reason}")
    except OSError as error:
        return RunStatus(shorten_path(run_dir), DAMAGED, why=f"{error.filename}: {error.strerror}")
