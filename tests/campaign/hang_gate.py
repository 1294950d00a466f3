"""Callbacks of the hang campaign: workers that hang for good, and workers that only are slow."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from leyden.trainer.base import heartbeat as heartbeats
from leyden.trainer.base.heartbeat import heartbeat
from leyden.trainer.core.state import RunState

KIND, PHASE, RANK, FILE = "LEYDEN_HANG_KIND", "LEYDEN_HANG_PHASE", "LEYDEN_HANG_RANK", "LEYDEN_HANG_FILE"
"""Environment variables: one of KINDS; one of PHASES; the worker; and a file that is made when it hangs."""
KINDS = ("stopped", "collective", "full pipe", "loader")
PHASES = {
    "data": heartbeats.DATA, "forward": heartbeats.FORWARD, "update": heartbeats.UPDATE,
    "evaluation": heartbeats.EVALUATION, "callbacks": heartbeats.CALLBACKS,
}  # fmt: skip
AFTER_STEP = 22


class Hang:
    """Hangs in a phase, of which there has been one before, as the worker's heartbeat reports it."""

    def __init__(self) -> None:
        here = os.environ.get(RANK) == os.environ.get("RANK", "0") and os.environ.get(KIND) in KINDS[:3]
        self._phase = PHASES[os.environ[PHASE]] if here and os.environ[PHASE] != "callbacks" else None
        self._in_hook = here and os.environ[PHASE] == "callbacks"
        if self._phase is not None:
            enter = heartbeat.enter

            def entered(phase: int, occasion: str = "") -> None:
                enter(phase, occasion)
                if phase == self._phase and heartbeat.step >= AFTER_STEP:
                    _hang()

            heartbeat.enter = entered

    def on_epoch_end(self, state: RunState) -> None:
        if self._in_hook:
            with heartbeat.phase(heartbeats.CALLBACKS):
                _hang()


def _hang() -> None:
    Path(os.environ[FILE]).write_text(f"{time.monotonic()}\n")
    kind = os.environ[KIND]
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "collective":  # what the other never sends
        dist.recv(torch.zeros(1), src=1 - dist.get_rank(), tag=1 << 20)  # hybrid's own messages have tag 0
    else:
        _, end = os.pipe()
        os.write(end, bytes(1 << 20))


class Slow:
    """Slow where a run may be slow, on all workers alike: at its start, in its validations, once an epoch in a step's
    forward, and when it saves.

    Args:
        start_s: of the start.
        batch_s: of a batch of the validation.
        first_batch_s: of the first batch of each split.
        end_s: of a validation's end.
        save_s: of this callback's part of a checkpoint.
        pause_s: of computation in one step of each epoch, as a compilation would take.
    """

    def __init__(
        self, start_s: float, batch_s: float, first_batch_s: float, end_s: float, save_s: float, pause_s: float
    ) -> None:
        self.batch_s, self.first_batch_s, self.pause_s = batch_s, first_batch_s, pause_s
        self.end_s, self.save_s = end_s, save_s
        self._paused_in = -1
        self._evaluated: set[str] = set()
        if heartbeat.current == heartbeats.START:  # not where the config alone is validated
            time.sleep(start_s)

    def on_evaluation_batch(self, state: RunState, split: str, index: int, output: object, batch: object) -> None:
        time.sleep(self.batch_s if split in self._evaluated else self.first_batch_s)
        self._evaluated.add(split)

    def on_validation_end(self, state: RunState) -> None:
        time.sleep(self.end_s)

    def state_dict(self) -> dict[str, object]:
        time.sleep(self.save_s)
        return {}

    def on_train_batch(self, state: RunState, batch: object) -> None:
        if state.step_in_epoch == 3 and self._paused_in != state.epoch:
            self._paused_in = state.epoch
            end = time.monotonic() + self.pause_s
            while time.monotonic() < end:
                pass
