"""A trial in a process of its own, and the signals on their way to it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STOPPED = (75, 130, 143)
"""Exit codes of a trial that was told to stop; the sweep stops with it."""


def run_process(folder: Path, verb: str = "train") -> int:
    """Train or resume a frozen run in a process of its own that gets our signals, once each. Returns its exit code."""
    # A group of its own: Ctrl-C reaches it through us alone, and a second SIGINT would kill it while it saves.
    command = [sys.executable, "-m", "leyden.trainer.trial", str(folder), str(os.getpid()), verb]
    process = subprocess.Popen(command, process_group=0)
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    with _handled(forward, signal.SIGINT, signal.SIGTERM):
        code = process.wait()
    if received and code not in (75, 0):
        return 130 if received[0] == signal.SIGINT else 143
    return code if code >= 0 else 128 - code


@contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def sigterm_as_exit() -> Any:
    """Between two trials SIGTERM ends the sweep in order."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    return _handled(leave, signal.SIGTERM)
