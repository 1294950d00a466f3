"""Callback that holds one worker of a run in a phase, until the campaign has injected its fault."""

import os
import time
from pathlib import Path
from typing import Any

from leyden.trainer.base import heartbeat as heartbeats
from leyden.trainer.base.heartbeat import heartbeat
from leyden.trainer.core.state import RunState
from leyden.trainer.launch.child import AGENT

FOLDER, PHASE, RANK = "LEYDEN_GATE_FOLDER", "LEYDEN_GATE_PHASE", "LEYDEN_GATE_RANK"
"""Environment variables: the gate's folder; one of fault_cells.PHASES, or "flush" (in a save, the file written and not
renamed yet); and the worker that is held, or "any"."""
REACHED, OPEN, ALLOCATE = "reached", "open", "allocate"
"""Files in the folder: the process that is held; whether it may go on; MiB that it then allocates, as a step might."""
SAVED_BEFORE = 22
"""Steps after which a phase counts: there is a checkpoint by then."""
TIMEOUT_S = 300.0


class Gate:
    """Holds the worker once, in the phase that the worker's own heartbeat reports."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
        self._phase = os.environ.get(PHASE, "")
        if self._folder is None or not self._is_held():
            self._phase = ""
        if self._phase == "start":
            self._hold()
        elif self._phase and not hasattr(heartbeat, "gated"):
            setattr(heartbeat, "gated", True)  # noqa: B010
            self._watch_phases()

    def on_fit_end(self, state: RunState) -> None:
        if self._phase == "end":
            self._hold()

    def _is_held(self) -> bool:
        """Whether this process is the worker. A process that only validates the config builds callbacks as well."""
        rank = os.environ[RANK]
        return AGENT in os.environ if rank == "any" else os.environ.get("RANK", "0") == rank

    def _watch_phases(self) -> None:
        enter, fsync = heartbeat.enter, os.fsync

        def entered(phase: int, occasion: str = "") -> None:
            enter(phase, occasion)
            if heartbeat.step >= SAVED_BEFORE and phase == _PHASES.get(self._phase):
                self._hold()

        def flushed(file: Any) -> None:
            fsync(file)
            if self._phase == "flush" and heartbeat.current == heartbeats.CHECKPOINT and heartbeat.step >= SAVED_BEFORE:
                self._hold()

        heartbeat.enter = entered
        os.fsync = flushed

    def _hold(self) -> None:
        assert self._folder is not None
        try:
            with open(self._folder / REACHED, "x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            return
        end = time.monotonic() + TIMEOUT_S
        while not (self._folder / OPEN).exists():
            assert time.monotonic() < end, "the gate was not opened"
            time.sleep(0.01)
        if (self._folder / ALLOCATE).exists():
            size = int((self._folder / ALLOCATE).read_text())
            self.allocated = bytearray(os.urandom(1) * (size << 20))


_PHASES = {
    "mid-epoch": heartbeats.FORWARD, "save": heartbeats.CHECKPOINT, "validation": heartbeats.EVALUATION,
}  # fmt: skip
