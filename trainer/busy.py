"""Whether other processes want the processors that a run is to compute on."""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .discovery.reading import text_of

_SHORTEST_S = 0.5
"""The kernel counts in hundredths of a second: less than this says nothing."""
_SPARE = 0.5
"""Cores by which others may cut into what the run wants before it is worth a word."""


@dataclass(frozen=True)
class CpuTime:
    """Seconds that processors have worked since the machine's start, and what of it a family of processes had."""

    at: float
    """By the monotonic clock."""
    busy: float
    family: float

    @classmethod
    def now(cls, processors: Collection[int], ancestor: int, root: Path = Path("/")) -> "CpuTime":
        """
        Args:
            processors: hardware threads that are looked at.
            ancestor: process id of the one that started all others of the family.
        """
        return cls(time.monotonic(), _busy(processors, root), _family(ancestor, root))

    def others_since(self, before: "CpuTime") -> float | None:
        """Cores that other processes kept busy meanwhile, on average; None where too little time has gone by."""
        seconds = self.at - before.at
        if seconds < _SHORTEST_S:
            return None
        return max(0.0, (self.busy - before.busy - (self.family - before.family)) / seconds)


def warning(others: float, processors: int, threads: int, workers: int) -> str | None:
    """What to say, and what can be done; None where the run has what it wants.

    Args:
        others: cores that other processes keep busy.
        processors: that the workers of this node may run on.
        threads: of each worker.
        workers: of this node.
    """
    if others < _SPARE or others + threads * workers <= processors + _SPARE:
        return None
    text = f"this machine is busy: other processes kept {others:.1f} of the {processors} cores while this run started"
    left = max(1, int(processors - others + _SPARE))
    if left // workers < threads and threads > 1:
        fewer = f"OMP_NUM_THREADS={max(1, left // workers)}"
        return f"{text}. Threads that wait for each other can be several times slower than fewer: {fewer}"
    if left < workers:
        return f"{text}. Workers that wait for each other are slower than fewer: topology.devices_per_node={left}"
    return f"{text}. Expect it to be slower"


_start: CpuTime | None = None


def look() -> None:
    """Remember how things stand at the start of this process."""
    global _start
    ancestor = _ancestor()
    _start = CpuTime.now(_processors(ancestor), ancestor)


def warning_since_look(threads: int, workers: int) -> str | None:
    """What to say of the time since then, once. Arguments as for `warning`."""
    global _start
    before, _start = _start, None
    if before is None:
        return None
    ancestor = _ancestor()
    processors = _processors(ancestor)
    others = CpuTime.now(processors, ancestor).others_since(before)
    return None if others is None else warning(others, len(processors), threads, workers)


def _ancestor() -> int:
    """The agent, which has started all processes of the run on this node, else this process."""
    return int(os.environ.get("LEYDEN_AGENT") or os.getpid())


def _processors(ancestor: int) -> set[int]:
    """Where the run's processes may run: this one may be bound to a part of it."""
    with suppress(OSError, AttributeError):
        return os.sched_getaffinity(ancestor)
    return set(range(os.cpu_count() or 1))


def _busy(processors: Collection[int], root: Path) -> float:
    wanted, ticks = {f"cpu{number}" for number in processors}, 0
    for line in (text_of(root / "proc/stat") or "").splitlines():
        name, *numbers = line.split()
        if name in wanted:
            user, nice, system, _, _, *rest = map(int, numbers[:8])  # idle and waiting for a disk left out
            ticks += user + nice + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(ancestor: int, root: Path) -> float:
    ticks, waiting = 0, [ancestor]
    while waiting:
        folder = root / f"proc/{waiting.pop()}"
        after_name = (text_of(folder / "stat") or "").rpartition(")")[2].split()
        if len(after_name) > 14:
            ticks += sum(map(int, after_name[11:15]))  # its own, and those of children that have ended
        for task in folder.glob("task/*/children"):
            waiting += map(int, (text_of(task) or "").split())
    return ticks / os.sysconf("SC_CLK_TCK")
