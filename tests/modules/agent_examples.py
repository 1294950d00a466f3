"""Callbacks that end a worker in the middle of a run, for tests/launch/test_agent.py."""

import os
import signal
from pathlib import Path
from typing import Any

from leyden.trainer.runs.checkpoints import path_of


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
        state.checkpoint_writer.wait()  # which checkpoints there are is the test's, not a thread's
        os.kill(os.getpid(), signal.SIGKILL)


class DamagesAndDies:
    """Once the file `armed` is in a folder: damage of the newest checkpoint after a step, and SIGKILL, once.

    Args:
        step: after which.
        notes: the folder.
    """

    def __init__(self, step: int, notes: str):
        self.step, self.armed = step, Path(notes) / "armed"

    def on_step_end(self, state: Any) -> None:
        if state.step == self.step and self.armed.exists():
            self.armed.unlink()
            state.checkpoint_writer.wait()
            newest = path_of(state.run_dir, state.step - 1)
            content = bytearray(newest.read_bytes())
            content[len(content) // 2] ^= 1
            newest.write_bytes(content)
            os.kill(os.getpid(), signal.SIGKILL)
