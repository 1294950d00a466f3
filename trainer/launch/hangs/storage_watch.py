"""Watch over the run folder's file system while processes wait for it: said early, since nothing else can be done."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ...base.heartbeat import CALLBACKS, CHECKPOINT
from ...config.schema import Config
from ..progress_report import ProgressReport

_MAX_S = 5.0
"""Seconds without progress after which the file system is asked, and without an answer after which that is said."""


class StorageProbe:
    """Asks a file system, in threads: whoever waits for one that has stalled can be neither interrupted nor killed.

    Args:
        writes: whether to ask by a write, which changes nothing: a frozen file system still answers readers.
    """

    def __init__(self, folder: Path, writes: bool):
        self._folder = folder
        self._writes = writes
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0

    def silent_s(self) -> float:
        """Seconds that the last question has been without an answer. Asks again where there is one."""
        if self._thread is None or not self._thread.is_alive():
            self._asked_at = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="leyden-storage", daemon=True)
            self._thread.start()
        return time.monotonic() - self._asked_at

    def _ask(self) -> None:
        with suppress(OSError):
            status = os.stat(self._folder)
            os.statvfs(self._folder)
            if self._writes:
                os.utime(self._folder, ns=(status.st_atime_ns, status.st_mtime_ns))


class StorageWatch:
    """Says, once in a stall, that a process waits for the run folder's file system, which does not answer.

    Args:
        config: without trainer.hang_timeout, `update` is not to be called.
        writes: whether the run writes into its folder; an evaluation does not.
    """

    def __init__(self, config: Config, run_dir: Path, writes: bool):
        self._timeout = config.trainer.hang_timeout or 0.0
        self._limit_s = min(_MAX_S, self._timeout / 4)
        self._run_dir = run_dir
        self._probe = StorageProbe(run_dir, writes)
        self.said = False

    def update(self, reports: Sequence[ProgressReport]) -> bool:
        """Look at the processes of this node. Returns whether one of them may be waiting for the file system."""
        waiting = [report for report in reports if report.stalled_s >= self._limit_s and _may_wait(report)]
        if not waiting:
            self.said = False
        elif self.is_silent() and not self.said:
            self.said = True
            longest = max(waiting, key=lambda report: report.stalled_s)
            print(f"leyden: warning: {self._sentence(longest)}", file=sys.stderr, flush=True)
        return bool(waiting)

    def is_silent(self) -> bool:
        """Whether the file system has not answered for so long that it is said to have stalled."""
        return self._probe.silent_s() >= self._limit_s

    @property
    def silence(self) -> str:
        return f"the file system of {self._run_dir} does not answer"

    def _sentence(self, report: ProgressReport) -> str:
        where = f"{report.role.title} on {report.host} is {report.where}"
        ends = f"the run ends after {self._timeout:g} s (trainer.hang_timeout), once it answers"
        return f"no progress for {report.stalled_s:.0f} s: {where}, and {self.silence}; {ends}"


def _may_wait(report: ProgressReport) -> bool:
    # the thread that waits may be one of a logger's, so that the process itself sleeps
    return report.phase in (CALLBACKS, CHECKPOINT) or report.status == psutil.STATUS_DISK_SLEEP
