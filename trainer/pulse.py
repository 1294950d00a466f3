"""Where this process stands: step and phase, in memory that its watcher reads. No torch: an agent reads it, too."""

import mmap
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

PHASES = (
    "its start", "the making of the data", "callbacks and logging", "evaluation", "a checkpoint", "data", "forward",
    "backward", "update", "a meeting of all workers",
)  # fmt: skip
"""In the order in which workers that have done the same steps come by them; whoever is in the last waits."""
START, PREPARATION, CALLBACKS, EVALUATION, CHECKPOINT, DATA, FORWARD, BACKWARD, UPDATE, MEETING = range(len(PHASES))

_LAYOUT = Struct("=QQB")


@dataclass(frozen=True)
class Beat:
    """What a process said last."""

    number: int
    """How often it has said something."""
    step: int
    """Optimizer steps done."""
    phase: int
    """What it went on to: an index of PHASES."""

    @classmethod
    def read(cls, memory: bytes | bytearray | mmap.mmap) -> "Beat":
        return cls(*_LAYOUT.unpack_from(memory, 0))


class Pulse:
    """This process's side: a few bytes that are written over and over, without a system call."""

    def __init__(self) -> None:
        self.memory: bytearray | mmap.mmap = bytearray(_LAYOUT.size)
        self._number = 0

    def publish(self, path: Path) -> None:
        """From now on in a file, so that another process can read it."""
        path.write_bytes(self.memory)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    def at(self, phase: int, step: int) -> None:
        """Say that this process lives, and what it goes on to.

        Args:
            step: optimizer steps done.
        """
        self._number += 1
        _LAYOUT.pack_into(self.memory, 0, self._number, step, phase)


pulse = Pulse()
"""The process's own: it trains one thing at a time."""
