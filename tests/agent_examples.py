"""Callbacks that end a worker in the middle of a run, for tests/test_agent.py."""

import os
import signal
from pathlib import Path
from typing import Any


class Killed:
    """SIGKILL of a worker after some steps, once each.

    Args:
        rank: of the worker.
        steps: after which it is killed.
        notes: folder in which each kill is recorded.
        once: False: each time that a step is reached.
    """

    def __init__(self, rank: int, steps: list[int], notes: str, once: bool = True):
        self.rank, self.steps, self.notes, self.once = rank, steps, Path(notes), once

    def on_step_end(self, state: Any) -> None:
        note = self.notes / f"killed-{state.step}"
        if state.fabric.global_rank != self.rank or state.step not in self.steps or (self.once and note.exists()):
            return
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
