"""Watchdog thread inside the process, for one that trains without an agent."""

import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from ...base.heartbeat import HeartbeatReading, heartbeat
from ...config.job import JobSpec
from ...runs.summary import last_good_checkpoint, mark_failed
from ..progress_report import ProgressReport
from ..roles import Role
from .diagnosis import StallTimer, diagnose, goes_on, is_stalled, poll_interval, save_stacks, stacks_folder, warning
from .storage_watch import StorageWatch
from .suspicion import Suspicion, cpu_seconds_of

_RECORDING_S = 10.0
"""Time for the run folder's file system to take the record of a hang."""


class Watchdog(threading.Thread):
    """Ends the process, with exit code 1, when its training makes no progress.

    A training that hangs in native code without releasing Python's lock stops this thread, too; an agent
    (topology.max_restarts of 1 or more) detects that.
    """

    def __init__(self, job: JobSpec, timeout: float, rank: int = 0):
        super().__init__(name="leyden-watch", daemon=True)
        self._job = job
        self._timeout = timeout
        self._rank = rank
        self._stopped = threading.Event()

    def run(self) -> None:
        interval = poll_interval(self._timeout)
        timer, last_poll = StallTimer(interval), time.monotonic()
        suspicion, warned_at = Suspicion(partial(cpu_seconds_of, os.getpid())), None
        storage = StorageWatch(self._job.config, self._job.run_dir, writes=not self._job.is_evaluation)
        while not self._stopped.wait(interval):
            now = time.monotonic()
            elapsed, last_poll = now - last_poll, now
            reading = HeartbeatReading.read(heartbeat.memory)
            stalled_s = timer.update(reading, elapsed)
            suspicious = suspicion.update(reading, stalled_s)
            host = socket.gethostname()
            report = ProgressReport(
                Role("worker", self._rank), host, reading.step, reading.phase, stalled_s, "", suspicion.busy,
                reading.first_time,
            )  # fmt: skip
            if is_stalled(report, self._timeout):
                self._end_process(report, storage)
            waiting = storage.update([report])
            if warned_at is None:
                text = warning([report], self._job.config) if suspicious and not storage.said else None
                if text is not None:
                    print(f"leyden: warning: {text}", file=sys.stderr, flush=True)
                warned_at = now - stalled_s if storage.said or text is not None else None
            elif not suspicious and not waiting:
                print(goes_on(now - warned_at), file=sys.stderr, flush=True)
                warned_at = None

    def stop(self) -> None:
        self._stopped.set()

    def _end_process(self, report: ProgressReport, storage: StorageWatch) -> None:
        folder = stacks_folder(self._job)
        text = diagnose([report], self._job.config, folder).text
        # first, and the rest in a thread: it may be the run folder's file system that does not answer
        print(text, file=sys.stderr, flush=True)
        recording = threading.Thread(target=self._record, args=(report, text, folder, _stacks()), daemon=True)
        recording.start()
        recording.join(_RECORDING_S)
        if recording.is_alive() and not storage.said:
            print(storage.silence, file=sys.stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        # not sys.exit: the thread that hangs would never let the interpreter shut down
        os._exit(1)

    def _record(self, report: ProgressReport, text: str, folder: Path, stacks: str) -> None:
        """Keep the hang in the run folder, and print how to go on."""
        save_stacks(folder, report, stacks, datetime.now().astimezone().isoformat(timespec="seconds"))
        if not self._job.is_evaluation:
            mark_failed(self._job.run_dir, text, self._rank)
            print(last_good_checkpoint(self._job.run_dir), file=sys.stderr, flush=True)


def _stacks() -> str:
    """Stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
