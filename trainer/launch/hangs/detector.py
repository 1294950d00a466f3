"""Hang detection: an agent ends the workers that all others wait for."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from ...config.job import JobSpec
from ..peers import Peers
from ..process import Process
from ..progress_report import ProgressReport
from ..roles import Role
from .diagnosis import (
    HangDiagnosis,
    StallTimer,
    diagnose,
    goes_on,
    is_stalled,
    is_stopped,
    poll_interval,
    save_stacks,
    stacks_folder,
    warning,
)
from .flight_recorder import request_dump
from .storage_watch import StorageWatch
from .suspicion import MIN_S, Suspicion, cpu_seconds_of

_STACK_TIMEOUT_S = 2.0
"""Time for processes to write their stacks; then the stragglers are ended."""


class HangDetector:
    """Warns of a run that probably hangs; after trainer.hang_timeout it ends the stragglers, on any node.

    Args:
        peers: the other nodes: while one of their workers makes progress, none of this node's hangs.
        folder: of the worker group, where NCCL listens for a request of its flight recorder.
    """

    def __init__(self, job: JobSpec, peers: Peers, folder: Path):
        self.job = job
        self.peers = peers
        self._folder = folder
        self._storage = StorageWatch(job.config, job.run_dir, writes=not job.is_evaluation)
        self._timeout = job.config.trainer.hang_timeout
        self._interval = poll_interval(self._timeout) if self._timeout is not None else 0.0
        self._last_poll = self._diagnosed_at = time.monotonic()
        self._timers: dict[Role, StallTimer] = {}
        self._suspicions: dict[Role, Suspicion] = {}
        self._suspected: set[Role] = set()
        self._warned_at: float | None = None
        """Start of the stall that was said."""
        self._reports: Sequence[ProgressReport] = []
        self._diagnosis: HangDiagnosis | None = None
        self._stacks_folder: Path | None = None
        self._saving_thread: threading.Thread | None = None

    def poll(self, processes: Sequence[Process]) -> None:
        """Read heartbeats, once in a polling interval; to be called often."""
        now = time.monotonic()
        elapsed, timeout = now - self._last_poll, self._timeout
        if timeout is None or elapsed < self._interval:
            return
        self._last_poll = now
        if not all(process.has_begun for process in processes if process.exit is None):
            return
        if self._diagnosis is not None:
            if now - self._diagnosed_at >= _STACK_TIMEOUT_S:
                self._end_stragglers(processes, self._diagnosis)
            return
        reports = [self._report(process, elapsed) for process in processes if process.exit is None]
        local = [report for report in reports if report.role.kind == "worker"]
        waiting = self._storage.update(reports)
        if self._storage.said and self._warned_at is None:
            self._warned_at = now - max(report.stalled_s for report in reports)
        suspicious = self._is_suspicious(reports, timeout)
        run_stall = self.peers.report_stall(reports if suspicious else None)
        workers = [report for report in run_stall or () if report.role.kind == "worker"]
        if not suspicious and not waiting:
            self._say_that_it_goes_on()
        if run_stall is None or not workers:
            return
        if all(is_stalled(report, timeout) for report in workers):
            self._stacks_folder = stacks_folder(self.job)
            self._diagnosis, self._diagnosed_at = diagnose(run_stall, self.job.config, self._stacks_folder), now
            self._reports = reports
            for process in processes:
                process.request_stacks()
                request_dump(self._folder, process.role.number)
        elif any(report.role.number == 0 for report in local):
            self._warn(run_stall)

    def _is_suspicious(self, reports: Sequence[ProgressReport], timeout: float) -> bool:
        """Whether no worker of this node makes progress: for longer than usual, or because one process is stopped."""
        stopped = any(is_stopped(report) and report.stalled_s >= MIN_S for report in reports)
        return all(
            report.role in self._suspected or is_stalled(report, timeout) or (stopped and report.stalled_s >= MIN_S)
            for report in reports
            if report.role.kind == "worker"
        )

    def _report(self, process: Process, elapsed: float) -> ProgressReport:
        role, reading = process.role, process.heartbeat()
        stalled_s = self._timers.setdefault(role, StallTimer(self._interval)).update(reading, elapsed)
        suspicion = self._suspicions.setdefault(role, Suspicion(partial(cpu_seconds_of, process.pid)))
        suspected = suspicion.update(reading, stalled_s)
        (self._suspected.add if suspected else self._suspected.discard)(role)
        host, status = socket.gethostname(), _status_of(process.pid)
        busy, first_time = suspicion.busy, reading.first_time
        return ProgressReport(role, host, reading.step, reading.phase, stalled_s, status, busy, first_time)

    def _warn(self, reports: Sequence[ProgressReport]) -> None:
        """Say once, on the node of worker 0, that the run probably hangs."""
        text = warning(reports, self.job.config) if self._warned_at is None else None
        if text is not None:
            self._warned_at = time.monotonic() - max(report.stalled_s for report in reports)
            print(f"leyden: warning: {text}", file=sys.stderr, flush=True)

    def _say_that_it_goes_on(self) -> None:
        if self._warned_at is not None:
            seconds = time.monotonic() - self._warned_at
            print(goes_on(seconds), file=sys.stderr, flush=True)
            self._warned_at = None

    def _end_stragglers(self, processes: Sequence[Process], diagnosis: HangDiagnosis) -> None:
        if self._storage.is_silent():
            # now: the processes that wait for it end when it answers, and so does this one
            text = f"{diagnosis.text}; {self._storage.silence}: the run ends when it does"
            print(f"leyden: {text}", file=sys.stderr, flush=True)
        # in a thread: the file system of the folder may be what the stragglers wait for
        self._saving_thread = threading.Thread(target=self._saving(processes), name="leyden-stacks", daemon=True)
        self._saving_thread.start()
        for process in processes:
            if process.role in diagnosis.stragglers:
                process.kill_as_failed(diagnosis.text)

    def save_stacks(self, processes: Sequence[Process]) -> None:
        """Write the stacks of a diagnosed hang, once, and start over. All processes have ended."""
        if self._diagnosis is not None:
            self._saving(processes)()
        if self._saving_thread is not None:
            self._saving_thread.join()
            self._saving_thread = None

    def _saving(self, processes: Sequence[Process]) -> Callable[[], None]:
        """What writes the stacks of the diagnosed hang; this detector starts over."""
        folder, reports = self._stacks_folder, self._reports
        assert folder is not None
        stacks = {process.role: process.stacks() for process in processes}
        at = datetime.now().astimezone().isoformat(timespec="seconds")

        def save() -> None:
            with suppress(OSError):  # the run folder's disk may be what has failed
                for report in reports:
                    save_stacks(folder, report, stacks.get(report.role, ""), at)

        self._diagnosis, self._reports = None, []
        self._warned_at = None
        self._timers.clear()
        self._suspicions.clear()
        self._suspected.clear()
        return save


def _status_of(pid: int) -> str:
    """psutil's name of a process's state; "" where it has ended, or /proc cannot be read."""
    try:
        return psutil.Process(pid).status()
    except (psutil.Error, OSError):
        return ""
