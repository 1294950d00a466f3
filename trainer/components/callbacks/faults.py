"""Faults for the trainings of `leyden doctor --train`: a worker's death, and errors for waits of the host."""

import os
import signal
from typing import Any

import torch
from typing_extensions import override

from ...core.callback_contract import CallbackContract

KILLED = "killed"
"""File in the run folder that says that the worker has been killed."""


class KillOnce(CallbackContract):
    """SIGKILL to the last worker after a step, once in a run.

    Args:
        step: optimizer step.
    """

    def __init__(self, step: int = 3):
        self.step = step

    @override
    def on_step_end(self, state: Any) -> None:
        mark = state.run_dir / KILLED
        last = state.fabric.global_rank == state.fabric.world_size - 1
        if last and state.step == self.step and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


class RefuseHostWaits(CallbackContract):
    """An error for each operation that lets the host wait for its GPU, in the middle of a run without a log.

    Args:
        after: optimizer steps that may wait: allocations, benchmarks of kernels.
        until: the last step that may not; logs and the end of an epoch read the device.
    """

    def __init__(self, after: int = 3, until: int = 10):
        self.after = after
        self.until = until

    @override
    def on_step_end(self, state: Any) -> None:
        modes = {self.after: "error", self.until: "default"}
        if state.step in modes and state.fabric.device.type == "cuda":
            torch.cuda.set_sync_debug_mode(modes[state.step])

    @override
    def on_exception(self, state: Any) -> None:
        if state.fabric.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
