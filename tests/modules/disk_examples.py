"""Callbacks that take a run's disk or folder away while it trains."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from leyden.trainer.core.state import RunState

BALLAST, FREED = "ballast", "freed"


def fill(disk: Path) -> None:
    """Write until there is no byte left."""
    with open(disk / BALLAST, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"0" * size)


def free(disk: Path) -> None:
    """Give the space back; nothing fills the disk again."""
    (disk / BALLAST).unlink(missing_ok=True)
    (disk / FREED).touch()


class Disturb:
    """Does something to the run folder, or to its disk, once.

    Args:
        how: fill | fill_for_a_while | rename | remove | lock | freeze.
        step: after it, or -1: at the training's end.
    """

    def __init__(self, how: str, step: int):
        self.how = how
        self.step = step

    def on_step_end(self, state: RunState) -> None:
        if not state.fabric.is_global_zero:
            return
        if state.step == self.step and not (state.run_dir.parent / FREED).exists():
            self._disturb(state)
        if state.step == self.step + 40 and self.how == "fill_for_a_while":
            free(state.run_dir.parent)

    def on_fit_end(self, state: RunState) -> None:
        if self.step == -1 and state.fabric.is_global_zero and not (state.run_dir.parent / FREED).exists():
            self._disturb(state)

    def _disturb(self, state: RunState) -> None:
        state.checkpoint_writer.wait()  # else a test would say when a thread is done
        run_dir = state.run_dir
        if self.how == "rename":
            os.rename(run_dir, run_dir.with_name("renamed"))
        elif self.how == "remove":
            shutil.rmtree(run_dir)
        elif self.how == "freeze":
            subprocess.run(["fsfreeze", "--freeze", run_dir.parent], check=True)
        elif self.how == "lock":
            subprocess.run(["chattr", "+i", run_dir, run_dir / "checkpoints"], check=True)
        else:
            fill(run_dir.parent)
