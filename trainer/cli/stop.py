"""`leyden stop`: request a run or a sweep to save and end, on this host or under Slurm."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ..base.atomic_file import write_atomically
from ..base.errors import ConfigError, refuse
from ..base.paths import absolute, shorten_path
from ..config.target_policy.untrusted_runs import refuse_foreign
from ..runs.folder import FROZEN, SWEEP
from ..runs.frozen import owners_of
from ..runs.lease_record import FILE, Lease, holds_open, is_alive, lease_of
from ..runs.slurm import STOP_REQUESTED, SUBMITTED, SlurmJob, cancel, folders_of, jobs_by_id, submission_of
from ..runs.status import RunStatus, runs_in, statuses

_POLL_S = 0.1
_REMIND_S = 60.0
SAVED = ("preempted", "interrupted", "done", "stopped early", "pruned")


def stop_run(named: str) -> int:
    """Request the run or sweep of a folder to end, and wait for the end if it runs on this host.

    Returns:
        0: it has saved, or Slurm has taken the request; 1: it ended otherwise.

    Raises:
        ConfigError: nothing runs there, or it runs on another host, or other trials would end with it.
    """
    folder = _run_or_sweep(named)
    refuse_foreign(folder, owners_of(folder), "stop")
    runs = list(runs_in(folder))
    submitted = {one.job_id: one.run_dir for one in map(submission_of, runs) if one is not None}
    jobs = jobs_by_id(submitted)
    active = {run: jobs[job] for job, run in submitted.items() if job in jobs and jobs[job].active}
    for run in active:
        if run not in runs:
            raise _shared(folder, run)
    if active:
        return max(_stop_job(run, job) for run, job in active.items())
    lease = lease_of(folder)
    if lease is None or not is_alive(folder, lease):
        raise _nothing_runs(folder, runs)
    if not lease.is_local:
        text = f"it is led by process {lease.pid} on {lease.host}, not on this host"
        signalled = f", or kill -TERM {lease.pid}" if lease.listens else ""
        raise refuse("stop", text, named, f"on {lease.host}: leyden stop {folder}{signalled}")
    _refuse_shared(folder, lease)
    active_runs = [run for run in runs if (own := lease_of(run)) is not None and is_alive(run, own)]
    _end(folder, lease)
    return _print_results(statuses(active_runs), folder)


def _run_or_sweep(named: str) -> Path:
    folder = absolute(named)
    if not ((folder / FROZEN).exists() or (folder / SWEEP).exists()):
        text = "this folder holds neither a run nor a sweep" if folder.is_dir() else "there is no such folder"
        raise refuse("stop", text, named, "leyden status lists the runs")
    return folder


def _nothing_runs(folder: Path, runs: Sequence[Path]) -> ConfigError:
    found = statuses(runs)
    state = f"it is {found[0].state}" if len(found) == 1 else f"none of its {len(found)} trials does"
    return refuse("stop", f"this does not run: {state}", shorten_path(folder), f"leyden status {shorten_path(folder)}")


def _refuse_shared(folder: Path, lease: Lease) -> None:
    """Refuse to stop one trial of a pipeline.

    Raises:
        ConfigError: its model shares workers with other trials, which would stop too.
    """
    if any(lease_of(run) == lease for run in runs_in(folder.parent) if run.parent == folder.parent and run != folder):
        raise _shared(folder, folder.parent)


def _shared(folder: Path, whole: Path) -> ConfigError:
    text = "its model shares its workers with those of the other trials"
    return refuse("stop", text, shorten_path(folder), f"leyden stop {shorten_path(whole)}: all of them")


def _stop_job(run: Path, job: SlurmJob) -> int:
    """Cancel the run's job. Returns the exit code.

    Raises:
        ConfigError: the job is not known to be the run's: slurm.json is forged, or the folder was renamed.
    """
    own, found = (run.resolve(), *run.resolve().parents), folders_of(job.id)
    if not any(folder.resolve() in own for folder in found):
        whose = f"it is of {found[0]}" if found else "neither its script nor its comment says whose it is"
        text = f"job {job.id} is not known to be this run's, whatever {SUBMITTED} says: {whose}; it was not cancelled"
        raise refuse("stop", text, shorten_path(run), f"scancel {job.id}, if it is to end")
    write_atomically(run / STOP_REQUESTED, "")
    wrong = cancel(job)
    if wrong is not None:
        print(f"{shorten_path(run)}: scancel {job.id}: {wrong}")
        return 1
    action = "was requested to save and end" if job.is_running else "was removed from the queue"
    print(f"{shorten_path(run)}: job {job.id} {action}; leyden status {shorten_path(run)} shows the result")
    return 0


def _end(folder: Path, lease: Lease) -> None:
    """Send SIGTERM, or leave a file to a process whose signals are its user's, and wait for the end.

    Raises:
        ConfigError: the process belongs to another user, or does not lead the run: its lease is forged.
    """
    try:
        if not holds_open(lease, folder):
            if not is_alive(folder, lease):
                return
            text = f"process {lease.pid} does not lead it, whatever {FILE} says: it does not hold that file open; "
            remedy = f"ps -o user,lstart,args -p {lease.pid} shows what it is"
            raise refuse("stop", text + "it was not signalled", shorten_path(folder), remedy)
        if lease.listens:
            os.kill(lease.pid, signal.SIGTERM)
        else:
            write_atomically(folder / STOP_REQUESTED, "")
    except ProcessLookupError:
        return
    except PermissionError:
        text = f"its leading process {lease.pid} belongs to another user"
        raise refuse("stop", text, shorten_path(folder), f"its owner: leyden stop {folder}") from None
    print(f"{shorten_path(folder)}: process {lease.pid} was requested to save and end", flush=True)
    remind = time.monotonic() + _REMIND_S
    # a process that goes on after its run no longer leads it
    while is_alive(folder, lease) and (lease.listens or lease_of(folder) == lease):
        if time.monotonic() > remind:
            remind += _REMIND_S
            print("it has not ended yet; Ctrl-C stops waiting, not the run", flush=True)
        time.sleep(_POLL_S)


def _print_results(ended: Sequence[RunStatus], folder: Path) -> int:
    """Print the results of the runs that were active. Returns the exit code."""
    if not ended:
        print(f"{shorten_path(folder)}: ended between two trials")
        return 0
    for run in ended:
        step = "" if run.step is None else f", saved at step {run.step}"
        print(f"{run.run}: {run.state}{step if run.state in SAVED else f', {run.why}'}")
    return 0 if all(run.state in SAVED for run in ended) else 1
