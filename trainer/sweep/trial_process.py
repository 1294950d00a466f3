"""Process of one trial, the forwarding of signals to it, and the task function of Hydra that starts it."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ..config.compose import frozen
from ..config.leftover_keys import drop_from_composition
from ..config.schema import load, with_processes_node
from ..runs.folder import freeze
from .results import QUEUED, final_metric

STOPPED = (75, 130, 143)
"""Exit codes of a trial stopped by a signal; the sweep stops with it."""


def run_process(folder: Path, verb: str = "train") -> int:
    """Train or resume a frozen run in a process of its own, to which signals are forwarded. Returns its exit code."""
    # A process of its own: a crash or a CUDA context must not outlive its trial. A group of its own: Ctrl-C reaches it
    # only once, through `forward`; a second SIGINT would kill it while it saves.
    command = [sys.executable, "-P", "-m", "leyden.trainer.entrypoints.trial", str(folder), str(os.getpid()), verb]
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
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def sigterm_as_exit() -> Any:
    """Context in which SIGTERM between two trials ends the sweep orderly."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    return _handled(leave, signal.SIGTERM)


@dataclass(frozen=True)
class RunTrial:
    """Task function that Hydra's launchers call: freezes one trial and runs it in a process of its own."""

    python_path: list[str]
    swept: list[str]
    dropped: dict[int, list[str]]
    """Keys that a trial's classes do not take, by its number."""

    def __call__(self, config: DictConfig) -> tuple[int, float]:
        """Exit code, or QUEUED, and metric."""
        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        drop_from_composition(config, self.dropped.get(int(hydra.job.num), []))
        values = with_processes_node(frozen(config, hydra, self.python_path, self.swept))
        print(f"\ntrial {hydra.job.num}: {' '.join(hydra.overrides.task)}", flush=True)
        freeze(folder, values)
        if load(folder).launcher == "slurm":
            return QUEUED, math.nan
        code = run_process(folder)
        if code in STOPPED:
            raise SystemExit(code)
        return code, final_metric(folder, values)
