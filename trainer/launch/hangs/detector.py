"""Hang detection: an agent ends the workers that all others wait for."""

import socket
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from ...config.schema import Config
from ..peers import Peers
from ..process import Process
from ..progress_report import ProgressReport
from ..roles import Role
from .diagnosis import HangDiagnosis, StallTimer, diagnose, is_stalled, poll_interval, save_stacks, warning
from .suspicion import Suspicion, cpu_seconds_of

_STACK_TIMEOUT_S = 2.0
"""Time for processes to write their stacks; then the stragglers are ended."""


class HangDetector:
    """Warns of a run that probably hangs; after trainer.hang_timeout it ends the stragglers, on any node.

    Args:
        peers: the other nodes: while one of their workers makes progress, none of this node's hangs.
    """

    def __init__(self, config: Config, run_dir: Path, peers: Peers):
        self.config = config
        self.run_dir = run_dir
        self.peers = peers
        self._timeout = config.trainer.hang_timeout
        self._interval = poll_interval(self._timeout) if self._timeout is not None else 0.0
        self._last_poll = self._diagnosed_at = time.monotonic()
        self._timers: dict[Role, StallTimer] = {}
        self._suspicions: dict[Role, Suspicion] = {}
        self._suspected: set[Role] = set()
        self._warned_at: float | None = None
        """Start of the stall that was said."""
        self._reports: Sequence[ProgressReport] = []
        self._diagnosis: HangDiagnosis | None = None

    def poll(self, processes: Sequence[Process]) -> None:
        """To be called often; it reads heartbeats once in a polling interval."""
        now = time.monotonic()
        elapsed, timeout = now - self._last_poll, self._timeout
        if timeout is None or elapsed < self._interval:
            return
        self._last_poll = now
        if self._diagnosis is not None:
            if now - self._diagnosed_at >= _STACK_TIMEOUT_S:
                self._end_stragglers(processes, self._diagnosis)
            return
        reports = [self._report(process, elapsed) for process in processes if process.exit is None]
        local = [report for report in reports if report.role.kind == "worker"]
        suspicious = all(report.role in self._suspected or is_stalled(report, timeout) for report in local)
        run_stall = self.peers.report_stall(reports if suspicious else None)
        workers = [report for report in run_stall or () if report.role.kind == "worker"]
        if not suspicious:
            self._say_that_it_goes_on()
        if run_stall is None or not workers:
            return
        if all(is_stalled(report, timeout) for report in workers):
            self._diagnosis, self._diagnosed_at = diagnose(run_stall, self.config, self.run_dir), now
            self._reports = reports
            for process in processes:
                process.request_stacks()
        elif any(report.role.number == 0 for report in local):
            self._warn(run_stall)

    def _report(self, process: Process, elapsed: float) -> ProgressReport:
        role, reading = process.role, process.heartbeat()
        stalled_s = self._timers.setdefault(role, StallTimer(self._interval)).update(reading, elapsed)
        suspicion = self._suspicions.setdefault(role, Suspicion(partial(cpu_seconds_of, process.pid)))
        suspected = suspicion.update(reading, stalled_s)
        (self._suspected.add if suspected else self._suspected.discard)(role)
        host, status = socket.gethostname(), _status_of(process.pid)
        return ProgressReport(role, host, reading.step, reading.phase, stalled_s, status, suspicion.busy)

    def _warn(self, reports: Sequence[ProgressReport]) -> None:
        """Say once, on the node of worker 0, that the run probably hangs."""
        text = warning(reports, self.config) if self._warned_at is None else None
        if text is not None:
            self._warned_at = time.monotonic() - max(report.stalled_s for report in reports)
            print(f"leyden: warning: {text}", file=sys.stderr, flush=True)

    def _say_that_it_goes_on(self) -> None:
        if self._warned_at is not None:
            seconds = time.monotonic() - self._warned_at
            print(f"leyden: the run goes on, after {seconds:.0f} s without progress", file=sys.stderr, flush=True)
            self._warned_at = None

    def _end_stragglers(self, processes: Sequence[Process], diagnosis: HangDiagnosis) -> None:
        self.save_stacks(processes)
        for process in processes:
            if process.role in diagnosis.stragglers:
                process.kill_as_failed(diagnosis.text)

    def save_stacks(self, processes: Sequence[Process]) -> None:
        """Write the stacks of a diagnosed hang into the run's folder, once, and start over."""
        if self._diagnosis is None:
            return
        stacks = {process.role: process.stacks() for process in processes}
        at = datetime.now().astimezone().isoformat(timespec="seconds")
        for report in self._reports:
            save_stacks(self.run_dir, report, stacks.get(report.role, ""), at)
        self._diagnosis, self._reports = None, []
        self._warned_at = None
        self._timers.clear()
        self._suspicions.clear()
        self._suspected.clear()


def _status_of(pid: int) -> str:
    """psutil's name of a process's state; "" where it has ended, or /proc cannot be read."""
    try:
        return psutil.Process(pid).status()
    except (psutil.Error, OSError):
        return ""
