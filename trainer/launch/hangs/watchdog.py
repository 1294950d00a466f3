"""In-process watchdog thread, for a process that trains alone, without an agent."""

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
from ...config.schema import Config
from ...runs.summary import last_good_checkpoint, mark_failed
from ..progress_report import ProgressReport
from ..roles import Role
from .diagnosis import StallTimer, diagnose, is_stalled, poll_interval, save_stacks, warning
from .suspicion import Suspicion, cpu_seconds_of

_RECORDING_S = 10.0
"""Time for the run folder's file system to take the record of a hang."""


class Watchdog(threading.Thread):
    """Ends the process, with exit code 1, when its training makes no progress.

    A training that hangs in native code without releasing Python's lock stops this thread, too; an agent
    (topology.max_restarts of 1 or more) detects that.
    """

    def __init__(self, config: Config, run_dir: Path, timeout: float):
        super().__init__(name="leyden-watch", daemon=True)
        self._config = config
        self._run_dir = run_dir
        self._timeout = timeout
        self._stopped = threading.Event()

    def run(self) -> None:
        interval = poll_interval(self._timeout)
        timer, last_poll = StallTimer(interval), time.monotonic()
        suspicion, warned = Suspicion(partial(cpu_seconds_of, os.getpid())), False
        while not self._stopped.wait(interval):
            now = time.monotonic()
            elapsed, last_poll = now - last_poll, now
            reading = HeartbeatReading.read(heartbeat.memory)
            stalled_s = timer.update(reading, elapsed)
            suspicious = suspicion.update(reading, stalled_s)
            host = socket.gethostname()
            report = ProgressReport(Role("worker", 0), host, reading.step, reading.phase, stalled_s, "", suspicion.busy)
            if is_stalled(report, self._timeout):
                self._end_process(report)
            text = warning([report], self._config) if suspicious and not warned else None
            if text is not None:
                print(f"leyden: warning: {text}", file=sys.stderr, flush=True)
            warned = suspicious and (warned or text is not None)

    def stop(self) -> None:
        self._stopped.set()

    def _end_process(self, report: ProgressReport) -> None:
        text = diagnose([report], self._config, self._run_dir).text
        # first, and the rest in a thread: it may be the run folder's file system that does not answer
        print(text, file=sys.stderr, flush=True)
        recording = threading.Thread(target=self._record, args=(report, text, _stacks()), daemon=True)
        recording.start()
        recording.join(_RECORDING_S)
        if recording.is_alive():
            print(f"the file system of {self._run_dir} does not answer", file=sys.stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        # not sys.exit: the thread that hangs would never let the interpreter shut down
        os._exit(1)

    def _record(self, report: ProgressReport, text: str, stacks: str) -> None:
        """Keep the hang in the run folder, and print how to go on."""
        save_stacks(self._run_dir, report, stacks, datetime.now().astimezone().isoformat(timespec="seconds"))
        mark_failed(self._run_dir, text, rank=0)
        print(last_good_checkpoint(self._run_dir), file=sys.stderr, flush=True)


def _stacks() -> str:
    """Stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
