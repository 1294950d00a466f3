"""How one run stands, by the files in its folder and what Slurm knows of its job. No torch; nothing is changed."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_names import saved, step_of
from .origin import shown
from .pipeline.membership import pipeline_of
from .presence import Presence, lead_of, lives
from .slurm_jobs import STOP_REQUESTED, Job, submission_of

RUNNING = ("running", "starting", "stopping", "queued")
"""States of a run that goes on, or will."""
_LONG_AGO_S = 60.0


@dataclass(frozen=True)
class RunStatus:
    """One row of `leyden status`."""

    run: str
    state: str
    """running, starting, stopping, queued; done, stopped early, preempted, interrupted, failed, refused, slow,
    "ended without a word", "not started"."""
    step: int | None = None
    """Optimizer steps done."""
    total_steps: int | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    why: str = ""
    """What went wrong, or what to know besides."""
    checkpoint: str | None = None
    """The newest one's file, below the run's folder."""


def status_of(run_dir: Path, jobs: Mapping[str, Job]) -> RunStatus:
    """
    Args:
        jobs: by their ids, what Slurm knows.
    """
    summary, progress = _read(run_dir / "summary.json"), _read(run_dir / "progress.json")
    submission, lead = submission_of(run_dir), lead_of(run_dir)
    job = jobs.get(submission.job_id) if submission is not None else None
    whole = _run_around(run_dir, lead, job, submission.run_dir if submission is not None else run_dir)
    status = summary.get("status") if whole != run_dir else None  # that of one among others, who may go on
    if _is_alive(run_dir, lead, job) and status not in ("done", "failed"):
        state, why = _alive(whole, summary, progress, lead)
    elif job is not None and job.waits and status != "done":
        state, why = "queued", f"Slurm's job {job.id}: {job.reason or job.state}"
    else:
        state, why = _ended(run_dir, summary, lead, job)
    newest = next(iter(saved(run_dir)), None)
    last = step_of(newest) if newest is not None else None
    going = state == "running"
    step = _step(state, summary, progress, last)
    return RunStatus(
        shown(run_dir), state, step,
        step if state == "done" else progress.get("total_steps"),
        progress.get("samples_per_second") if going else summary.get("samples_per_second"),
        progress.get("seconds_left") if going else None,
        why, str(newest.relative_to(run_dir)) if newest is not None else None,
    )  # fmt: skip


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _step(state: str, summary: dict[str, Any], progress: dict[str, Any], last: int | None) -> int | None:
    """How far it came. The summary knows at the end; before that it says where the run began."""
    if state in ("done", "stopped early", "preempted", "interrupted"):
        return summary.get("steps")
    known = [step for step in (progress.get("step"), last) if step is not None]
    return max(known, default=None)


def _run_around(run_dir: Path, lead: Presence | None, job: Job | None, submitted: Path) -> Path:
    """The folder of the pipeline where that goes on and trains the run, else the run's own.

    Args:
        submitted: what the job runs.
    """
    if job is not None and job.active:
        return submitted
    pipeline = pipeline_of(run_dir)
    led = pipeline is not None and lead is not None and lead_of(pipeline) == lead
    return pipeline if pipeline is not None and led else run_dir


def _is_alive(run_dir: Path, lead: Presence | None, job: Job | None) -> bool:
    if job is not None and job.active:
        return job.runs
    # after its job it may have been resumed without Slurm: of this host that is certain
    return lead is not None and (job is None or lead.here) and lives(run_dir, lead)


def _alive(whole: Path, summary: dict[str, Any], progress: dict[str, Any], lead: Presence | None) -> tuple[str, str]:
    where = f"process {lead.pid} on {lead.host}" if lead is not None else ""
    if (whole / STOP_REQUESTED).exists():
        return "stopping", where
    if summary.get("status") != "running":
        return "starting", where
    ago = time.time() - progress.get("time", time.time())
    return "running", f"{where}; its last step was {ago:.0f} s ago" if ago > _LONG_AGO_S else where


def _ended(run_dir: Path, summary: dict[str, Any], lead: Presence | None, job: Job | None) -> tuple[str, str]:
    status, pipeline = summary.get("status"), pipeline_of(run_dir)
    again = f"leyden resume {shown(pipeline.parent if pipeline is not None else run_dir)}"
    if status == "done":
        reason = summary.get("stop_reason")
        return ("stopped early", reason) if reason else ("done", "")
    if status == "failed":
        rank = summary.get("failed_rank", -1)
        error = str(summary.get("error", ""))
        return "failed", f"rank {rank}: {error}" if rank >= 0 else error
    if status == "slow":
        return status, f"what is: {shown(run_dir / 'result.json')}"
    if status is None and lead is None and job is not None and job.state == "CANCELLED":
        return "not started", f"Slurm's job {job.id}: {job.state}; {again}"
    # a process that is gone, and whose file is still there, did not come to its own end
    if status == "running" or lead is not None or (job is not None and status is None):
        said = [f"Slurm's job {job.id}: {job.state}"] if job is not None else []
        if lead is not None:
            said.append(f"process {lead.pid} on {lead.host} is gone")
        around = _read(pipeline / "summary.json") if pipeline is not None else {}
        if around.get("status") in ("failed", "refused"):
            said.append(f"its pipeline {around['status']}: {str(around.get('error', '')).strip()}".splitlines()[0])
        return "ended without a word", "; ".join([*said, again])
    if status is None:
        return "not started", ""
    return str(status), again
