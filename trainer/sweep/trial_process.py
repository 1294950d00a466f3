"""Process of one trial, the forwarding of signals to it, and the task function of Hydra that starts it."""

import math
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ..compose.composer import freeze_composition
from ..compose.leftover_keys import drop_from_composition
from ..compose.pinned_weights import with_pinned_weights
from ..config.schema import Config, load, with_processes_node
from ..launch.child_process import ProcessSpec, spawn
from ..launch.fork_server import ForkServer, can_fork
from ..runs.folder import freeze
from .results import QUEUED, final_metric
from .study.callback import add_callback
from .trial_failures import TrialFailures

STOPPED = (75, 130, 143)
"""Exit codes of a trial stopped by a signal; the sweep stops with it."""


def run_process(folder: Path, verb: str = "train") -> int:
    """Train or resume a frozen run in a process of its own, to which signals are forwarded. Returns its exit code."""
    # A process of its own: a crash or a CUDA context must not outlive its trial. A group of its own: Ctrl-C reaches it
    # only once, through `forward`; a second SIGINT would kill it while it saves.
    arguments = [str(folder), str(os.getpid()), verb]
    spec = ProcessSpec("leyden.trainer.entrypoints.trial", arguments, dict(os.environ), new_session=False)
    server = _fork_server(folder)
    process = spawn(spec) if server is None else server.fork(spec)
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    with _handle(forward, signal.SIGINT, signal.SIGTERM):
        code = process.wait()
    if received and code not in (75, 0):
        return 130 if received[0] == signal.SIGINT else 143
    return code if code >= 0 else 128 - code


_imports_shared = False


@contextmanager
def share_imports() -> Iterator[None]:
    """Context in which the trials that this process runs are forked by one fork server."""
    global _imports_shared
    before, _imports_shared = ForkServer.prepared, True
    try:
        yield
    finally:
        _imports_shared = False
        if ForkServer.prepared not in (None, before):
            ForkServer.prepared.close()


@contextmanager
def imports_ahead(trials: Iterable[Config]) -> Iterator[None]:
    """Context of what imports as much as the trials do: their fork server imports at the same time."""
    if ForkServer.prepared is None and any(trial.launcher == "local" and _shares_imports(trial) for trial in trials):
        ForkServer.prepared = ForkServer.start_server(os.environ)
    before = dict(os.environ)
    yield
    if ForkServer.prepared is not None and ForkServer.prepared.environment == before:
        ForkServer.prepared.environment = dict(os.environ)  # variables that libraries set while they are imported


def _shares_imports(trial: Config) -> bool:
    return _imports_shared and trial.topology.start_method != "spawn" and can_fork(os.environ)


def _fork_server(folder: Path) -> ForkServer | None:
    """The fork server of the sweep, for a trial; None where the trial is to import by itself."""
    if not _shares_imports(load(folder)):
        return None
    if ForkServer.prepared is None:
        ForkServer.prepared = ForkServer.start_server(os.environ)
    # hydra.job.env_set may set for this trial what a library reads while it is imported
    return ForkServer.prepared if ForkServer.prepared.environment == dict(os.environ) else None


@contextmanager
def _handle(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
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

    return _handle(leave, signal.SIGTERM)


@dataclass(frozen=True)
class RunTrial:
    """Task function that Hydra's launchers call: freezes one trial and runs it in a process of its own."""

    python_path: list[str]
    swept: list[str]
    dropped: dict[int, list[str]]
    """Keys that a trial's classes do not take, by its number."""
    added: dict[int, dict[str, Any]]
    """Callback of a trial that reports to the study of its sweep, by the trial's number."""
    failures: TrialFailures

    def __call__(self, config: DictConfig) -> tuple[int, float]:
        """Exit code, or QUEUED, and metric."""
        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        number = int(hydra.job.num)
        add_callback(config, self.added.get(number))
        drop_from_composition(config, self.dropped.get(number, []))
        values = with_processes_node(
            with_pinned_weights(freeze_composition(config, hydra, self.python_path, self.swept))
        )
        print(f"\ntrial {number}: {' '.join(hydra.overrides.task)}", flush=True)
        freeze(folder, values)
        if load(folder).launcher == "slurm":
            return QUEUED, math.nan
        code = run_process(folder)
        if code in STOPPED:
            raise SystemExit(code)
        self.failures.end_trial(str(number), folder, failed=code != 0)
        return code, final_metric(folder, values)
