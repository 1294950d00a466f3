"""Heartbeat of a process: step and phase, in memory that a watchdog reads. No torch: an agent reads it as well."""

import mmap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter, time

import psutil

PHASES = (
    "its start", "the making of the data", "callbacks and logging", "evaluation", "a checkpoint", "data", "forward",
    "backward", "update", "a synchronization of all workers",
)  # fmt: skip
"""Phases in the order in which workers at the same step pass them; a worker in the last one waits for others."""
START, PREPARATION, CALLBACKS, EVALUATION, CHECKPOINT, DATA, FORWARD, BACKWARD, UPDATE, SYNCHRONIZATION = range(
    len(PHASES)
)

_LAYOUT = Struct("=QQB?")
_Key = int | tuple[int, str]
"""A phase, with its occasion if it has one."""


@dataclass(frozen=True)
class HeartbeatReading:
    """Newest beat of a process."""

    number: int
    """Beats so far."""
    step: int
    """Optimizer steps done."""
    phase: int
    """The phase that it entered: an index of PHASES."""
    first_time: bool = False
    """Whether the process has never been through this phase, of this occasion."""

    @classmethod
    def read(cls, memory: bytes | bytearray | mmap.mmap) -> "HeartbeatReading":
        return cls(*_LAYOUT.unpack_from(memory, 0))


class Heartbeat:
    """The process's own side: a few bytes that are overwritten, without a system call.

    Attributes:
        step: optimizer steps done; the next beat carries it.
        current: the phase that the process is in.
        occasion: what the phase is for, if it takes longer then than at other times, such as an epoch's end.
        seconds: spent in each phase of the present run, by its index; in that of `current` until it was entered.
        began: start of the present run (Unix time).
        observer: called with each phase that is entered; None: nothing is.
    """

    def __init__(self) -> None:
        self.memory: bytearray | mmap.mmap = bytearray(_LAYOUT.size)
        self.step = 0
        self._number = 0
        self.current, self.occasion = START, ""
        self._key: _Key = START
        self._passed: set[_Key] = set()
        """What has ended once."""
        self.began: float | None = None
        self.seconds = [0.0] * len(PHASES)
        self.observer: Callable[[int], None] | None = None
        self._since = perf_counter()

    def begin_run(self) -> None:
        """Count the seconds of a run from here on; those of a process's first run from the process's start."""
        before = _age_of_process() if self.began is None else 0.0
        self.began = time() - before
        self.seconds = [0.0] * len(PHASES)
        self.seconds[START] = before
        self.current, self.occasion, self._key, self._since = START, "", START, perf_counter()
        self._passed.clear()

    def publish(self, path: Path) -> None:
        """Move the bytes into a file, so that another process can read them."""
        path.write_bytes(self.memory)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    def beat(self) -> None:
        """Show that this process makes progress in its phase."""
        self._number += 1
        _LAYOUT.pack_into(self.memory, 0, self._number, self.step, self.current, self._key not in self._passed)

    def at(self, phase: int, step: int, occasion: str = "") -> None:
        """Enter a phase for good.

        Args:
            step: optimizer steps done.
        """
        self.step = step
        self.enter(phase, occasion)

    def enter(self, phase: int, occasion: str = "") -> None:
        """Enter a phase, and beat."""
        # `count` and `beat` written out: every step enters five phases, and a call costs as much as its work
        now = perf_counter()
        self.seconds[self.current] += now - self._since
        self._since = now
        self._passed.add(self._key)
        self.current, self.occasion = phase, occasion
        self._key = key = (phase, occasion) if occasion else phase
        self._number += 1
        _LAYOUT.pack_into(self.memory, 0, self._number, self.step, phase, key not in self._passed)
        if self.observer is not None:
            self.observer(phase)

    def count(self) -> None:
        """Count the seconds of the present phase up to now."""
        now = perf_counter()
        self.seconds[self.current] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, phase: int, occasion: str = "") -> Generator[None, None, None]:
        """A context in which the process is in a phase; after it the one before goes on."""
        before = (self.current, self.occasion)
        self.enter(phase, occasion)
        try:
            yield
        finally:
            self.enter(*before)


def _age_of_process() -> float:
    """Seconds since the start of this process. Its time by the clock is known to a second alone."""
    started = psutil.Process().create_time() - psutil.boot_time()
    return clock_gettime(CLOCK_BOOTTIME) - started


heartbeat = Heartbeat()
"""The process's own: it trains one thing at a time."""
