"""Diagnosis of a run in which no worker makes progress: the stragglers, and where they are."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...base.heartbeat import PREPARATION, START, SYNCHRONIZATION, HeartbeatReading
from ...base.paths import shorten_path
from ...config.job import JobSpec
from ...config.schema import Config
from ..progress_report import ProgressReport
from ..roles import Role
from .suspicion import BUSY_LIMIT_S

_MIN_START_S = 300.0
"""Least time for a process's start, however short trainer.hang_timeout is: torch may be imported over a network."""
_FIRST_TIME_S = 120.0
"""Seconds after which a phase is suspicious that all workers are in for the first time: a first batch is decoded, a
kernel compiled, a connection made; a process that waits for such things uses no CPU."""
STACKS = "hang"
"""Folder in the run's folder."""
_STATUS = {
    psutil.STATUS_STOPPED: "was stopped by a signal",
    psutil.STATUS_TRACING_STOP: "is held by a debugger",
    psutil.STATUS_DISK_SLEEP: "waits for a disk or a file server",
}


@dataclass(frozen=True)
class HangDiagnosis:
    """Cause of a hang."""

    stragglers: Sequence[Role]
    """Processes that the others wait for; several where none is ahead of another."""
    text: str


class StallTimer:
    """Time since a process's last heartbeat, from readings at a polling interval.

    Args:
        interval_s: from one reading to the next. A late reading counts as at most twice that: the agent itself was
            stopped, as by Ctrl-Z, and its processes may have been, too.
    """

    def __init__(self, interval_s: float):
        self.seconds = 0.0
        self._max_elapsed = 2 * interval_s
        self._number = -1

    def update(self, reading: HeartbeatReading, elapsed: float) -> float:
        """Count the time since the last reading. Returns the seconds without a heartbeat."""
        # preparation has no limit: a dataset may have to be downloaded
        if reading.number != self._number or reading.phase == PREPARATION:
            self._number, self.seconds = reading.number, 0.0
        else:
            self.seconds += min(elapsed, self._max_elapsed)
        return self.seconds


def poll_interval(timeout: float) -> float:
    """Seconds between two readings of heartbeats that may be `timeout` apart."""
    return min(1.0, timeout / 10)


def is_stalled(report: ProgressReport, timeout: float) -> bool:
    return report.stalled_s >= (max(timeout, _MIN_START_S) if report.phase == START else timeout)


def stacks_folder(job: JobSpec) -> Path:
    """Folder of the stacks of a hang: an evaluation writes nothing into the folder of its run."""
    return Path(tempfile.mkdtemp(prefix=f"leyden-{STACKS}-")) if job.is_evaluation else job.run_dir / STACKS


def diagnose(reports: Sequence[ProgressReport], config: Config, folder: Path) -> HangDiagnosis:
    """The stragglers among all processes of a run in which no worker makes progress.

    Args:
        folder: of the stacks.
    """
    stragglers = _stragglers(reports, config)
    timeout = config.trainer.hang_timeout
    stacks = f"the stacks of all processes are in {shorten_path(folder)}"
    text = f"no progress for {timeout:g} s (trainer.hang_timeout): {_sentence(stragglers)}; {stacks}"
    return HangDiagnosis([report.role for report in stragglers], text)


def warning(reports: Sequence[ProgressReport], config: Config) -> str | None:
    """What to say of a run that probably hangs; None while the stragglers compute, or may only be slow."""
    stragglers = _stragglers(reports, config)
    if any(report.busy and report.stalled_s < BUSY_LIMIT_S for report in stragglers):
        return None
    if not any(map(is_stopped, stragglers)) and _may_be_slow(reports, asynchronous=config.servers > 0):
        return None
    seconds = max(report.stalled_s for report in stragglers)
    ends = f"the run ends after {config.trainer.hang_timeout:g} s (trainer.hang_timeout)"
    return f"no progress for {seconds:.0f} s, longer than ever before: {_sentence(stragglers)}; {ends}"


def goes_on(seconds: float) -> str:
    """What to say once a process makes progress again, of which a warning was said."""
    return f"leyden: the run goes on, after {seconds:.0f} s without progress"


def is_stopped(report: ProgressReport) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return report.status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def _may_be_slow(reports: Sequence[ProgressReport], asynchronous: bool) -> bool:
    """Whether all workers are in a phase for the first time, whose duration is unknown, and none waits for another."""
    workers = [report for report in reports if report.role.kind == "worker"]
    phases = {worker.phase for worker in workers}
    together = len(phases) == 1 or (asynchronous and SYNCHRONIZATION not in phases)
    first_time = all(worker.first_time and worker.stalled_s < _FIRST_TIME_S for worker in workers)
    return together and first_time


def _stragglers(reports: Sequence[ProgressReport], config: Config) -> list[ProgressReport]:
    stopped = [report for report in reports if is_stopped(report)]
    workers = [report for report in reports if report.role.kind == "worker"]
    return stopped or _least_progress(workers, asynchronous=config.servers > 0)


def _least_progress(workers: Sequence[ProgressReport], asynchronous: bool) -> list[ProgressReport]:
    """Workers with the least progress; one that waits in a synchronization is ahead of all in other phases."""

    def progress(report: ProgressReport) -> tuple[float, ...]:
        # steps of asynchronous workers differ anyway: the one silent for longest is the straggler
        if asynchronous:
            return (report.phase == SYNCHRONIZATION, -report.stalled_s)
        return (report.step, report.phase)

    least = min(progress(worker) for worker in workers)
    return [worker for worker in workers if progress(worker) == least]


def _sentence(stragglers: Sequence[ProgressReport]) -> str:
    first = stragglers[0]
    if len(stragglers) > 1:
        names = ", ".join(f"{report.role.title} on {report.host}" for report in stragglers)
        return f"none is behind another, {names} are {first.where}"
    return f"{first.role.title} on {first.host} {_STATUS.get(first.status, 'is behind')}, {first.where}"


def save_stacks(folder: Path, report: ProgressReport, stacks: str, at: str) -> None:
    """Append the stacks of a process to its file in a folder.

    Args:
        stacks: of all its threads; "" where it did not answer.
        at: the time, for the heading.
    """
    folder.mkdir(exist_ok=True)
    name = report.role.title.replace(" ", "-")
    with open(folder / f"{name}.txt", "a") as file:
        heading = f"{at}: {report.role.title} on {report.host}, {report.where}"
        file.write(f"{heading}, no heartbeat for {report.stalled_s:.0f} s\n{stacks or 'it did not answer'}\n\n")
