"""`leyden stop`: ask a run or a sweep to save and end, wherever it runs."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from .errors import ConfigError, refuse
from .origin import shown
from .presence import Presence, lead_of, lives
from .run_folder import FROZEN, SWEEP, absolute, write_whole
from .run_status import RunStatus
from .slurm_jobs import STOP_REQUESTED, Job, cancel, known, submission_of
from .status import runs_in, statuses

_POLL_S = 0.1
_REMIND_S = 60.0
SAVED = ("preempted", "interrupted", "done", "stopped early")


def stop(named: str) -> int:
    """Ask what runs in this folder to end, and wait until it has where it runs on this host.

    Returns:
        0 it has saved, or Slurm was told; 1 it ended otherwise.

    Raises:
        ConfigError: nothing runs there, or it runs on another host, or others would end with it.
    """
    folder = _run_or_sweep(named)
    runs = list(runs_in(folder))
    submitted = {one.job_id: one.run_dir for one in map(submission_of, runs) if one is not None}
    jobs = known(submitted)
    active = {run: jobs[job] for job, run in submitted.items() if job in jobs and jobs[job].active}
    for run in active:
        if run not in runs:
            raise _shared(folder, run)
    if active:
        return max(_stop_job(run, job) for run, job in active.items())
    lead = lead_of(folder)
    if lead is None or not lives(folder, lead):
        raise _nothing_runs(folder, runs)
    if not lead.here:
        text = f"process {lead.pid} on {lead.host} leads it, and this host is another"
        raise refuse("stop", text, named, f"on {lead.host}: leyden stop {folder}, or kill -TERM {lead.pid}")
    _refuse_shared(folder, lead)
    going_on = [run for run in runs if (own := lead_of(run)) is not None and lives(run, own)]
    _end(folder, lead)
    return _told(statuses(going_on), folder)


def _run_or_sweep(named: str) -> Path:
    folder = absolute(named)
    if not ((folder / FROZEN).exists() or (folder / SWEEP).exists()):
        text = "this folder holds neither a run nor a sweep" if folder.is_dir() else "there is no such folder"
        raise refuse("stop", text, named, "leyden status tells which runs there are")
    return folder


def _nothing_runs(folder: Path, runs: Sequence[Path]) -> ConfigError:
    found = statuses(runs)
    how = f"it is {found[0].state}" if len(found) == 1 else f"none of its {len(found)} trials does"
    return refuse("stop", f"this does not run: {how}", shown(folder), f"leyden status {shown(folder)}")


def _refuse_shared(folder: Path, lead: Presence) -> None:
    """
    Raises:
        ConfigError: its model shares workers with others, and they would stop, too.
    """
    if any(lead_of(run) == lead for run in runs_in(folder.parent) if run.parent == folder.parent and run != folder):
        raise _shared(folder, folder.parent)


def _shared(folder: Path, whole: Path) -> ConfigError:
    text = "its model shares its workers with those of the other trials"
    return refuse("stop", text, shown(folder), f"leyden stop {shown(whole)}: all of them")


def _stop_job(run: Path, job: Job) -> int:
    write_whole(run / STOP_REQUESTED, "")
    wrong = cancel(job)
    if wrong is not None:
        print(f"{shown(run)}: scancel {job.id}: {wrong}")
        return 1
    how = "was asked to save and end" if job.runs else "was taken from the queue"
    print(f"{shown(run)}: job {job.id} {how}; leyden status {shown(run)} tells what came of it")
    return 0


def _end(folder: Path, lead: Presence) -> None:
    """SIGTERM, and wait for the end.

    Raises:
        ConfigError: the process is somebody else's.
    """
    try:
        os.kill(lead.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        text = f"process {lead.pid}, which leads it, belongs to another user"
        raise refuse("stop", text, shown(folder), f"its owner: leyden stop {folder}") from None
    print(f"{shown(folder)}: process {lead.pid} was asked to save and end", flush=True)
    remind = time.monotonic() + _REMIND_S
    while lives(folder, lead):
        if time.monotonic() > remind:
            remind += _REMIND_S
            print("it has not ended yet; Ctrl-C ends the waiting, not the run", flush=True)
        time.sleep(_POLL_S)


def _told(ended: Sequence[RunStatus], folder: Path) -> int:
    """Say what came of the runs that went on. Returns the exit code."""
    if not ended:
        print(f"{shown(folder)}: ended between two trials")
        return 0
    for run in ended:
        step = "" if run.step is None else f", saved at step {run.step}"
        print(f"{run.run}: {run.state}{step if run.state in SAVED else f', {run.why}'}")
    return 0 if all(run.state in SAVED for run in ended) else 1
