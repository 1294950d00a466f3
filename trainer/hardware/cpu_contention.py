"""CPU contention: load by other processes on the processors of a run."""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .discovery.sysfs import text_of

_SHORTEST_S = 0.5
"""Shortest interval to measure: the kernel counts in hundredths of a second."""
_SPARE = 0.5
"""Cores that other processes may take from the run before a warning."""
_ROUNDING = 1.1
"""Busy time beyond this multiple of what the processors have is a counter that jumped, as of a virtual machine."""

FamilyTime = Mapping[tuple[int, float], tuple[float, float]]
"""CPU seconds of each process of a tree, by its id and start: its own, and those of children that it has waited for."""


@dataclass(frozen=True)
class CpuTime:
    """Busy seconds of processors since boot, and the part used by one tree of processes."""

    at: float
    """Time of the measurement, by the monotonic clock."""
    busy: float
    processors: int
    family: FamilyTime

    @classmethod
    def now(cls, processors: Collection[int], ancestor: int, root: Path = Path("/")) -> "CpuTime":
        """Measure now.

        Args:
            processors: hardware threads to measure.
            ancestor: root process of the tree.
            root: folder of proc/stat.
        """
        return cls(time.monotonic(), _busy(processors, root), len(processors), _family(ancestor))

    def others_since(self, before: "CpuTime") -> float | None:
        """Average number of cores kept busy by other processes since `before`, at most all of the processors.

        None after too short a time, or where the kernel's counters cannot be right.
        """
        seconds, busy = self.at - before.at, self.busy - before.busy
        if seconds < _SHORTEST_S or not 0 <= busy <= _ROUNDING * self.processors * seconds:
            return None
        others = (busy - _growth(before.family, self.family)) / seconds
        return min(max(0.0, others), float(self.processors))


def warning(others: float, processors: int, threads: int, workers: int) -> str | None:
    """The warning with its remedy; None if the run has the processors that it needs.

    Args:
        others: cores that other processes keep busy.
        processors: number that the workers of this node may use.
        threads: of each worker.
        workers: of this node.
    """
    if others < _SPARE or others + threads * workers <= processors + _SPARE:
        return None
    text = f"this machine is busy: other processes kept {others:.1f} of the {processors} cores while this run started"
    left = max(1, int(processors - others + _SPARE))
    if left // workers < threads and threads > 1:
        if not _threads_sleep():
            return f"{text}. Threads spin while they wait for each other; they sleep with OMP_WAIT_POLICY=passive"
        fewer = f"OMP_NUM_THREADS={max(1, left // workers)}"
        return f"{text}. Threads that wait for each other can be slower than fewer: {fewer}"
    if left < workers:
        return f"{text}. Workers that wait for each other are slower than fewer: topology.devices_per_node={left}"
    return f"{text}. Expect it to be slower"


def _threads_sleep() -> bool:
    """Whether OpenMP's threads sleep while they wait: by default they take the processors from those they wait for."""
    return os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"


_start: CpuTime | None = None


def start_measurement() -> None:
    """Take the measurement at the start of this process."""
    global _start
    ancestor = _ancestor()
    _start = CpuTime.now(_processors(ancestor), ancestor)


def warning_since_start(threads: int, workers: int) -> str | None:
    """The warning about the time since `start_measurement`, once. Arguments as for `warning`."""
    global _start
    before, _start = _start, None
    if before is None:
        return None
    ancestor = _ancestor()
    processors = _processors(ancestor)
    others = CpuTime.now(processors, ancestor).others_since(before)
    return None if others is None else warning(others, len(processors), threads, workers)


def _ancestor() -> int:
    """Process id of the agent, which started all processes of the run on this node, else of this process."""
    return int(os.environ.get("LEYDEN_AGENT") or os.getpid())


def _processors(ancestor: int) -> set[int]:
    """Processors of the run; this process may be bound to a part of them."""
    with suppress(OSError, AttributeError):
        return os.sched_getaffinity(ancestor)
    return set(range(os.cpu_count() or 1))


def _busy(processors: Collection[int], root: Path) -> float:
    # read here: psutil.cpu_times(percpu=True) counts the processors that are online, and so loses their numbers
    wanted, ticks = {f"cpu{number}" for number in processors}, 0
    for line in (text_of(root / "proc/stat") or "").splitlines():
        name, *numbers = line.split()
        if name in wanted:
            user, nice, system, _, _, *rest = map(int, numbers[:8])  # idle and waiting for a disk left out
            ticks += user + nice + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(ancestor: int) -> FamilyTime:
    """Times of the processes of a tree."""
    family: dict[tuple[int, float], tuple[float, float]] = {}
    with suppress(psutil.Error):
        first = psutil.Process(ancestor)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                user, system, children_user, children_system = process.cpu_times()[:4]
                family[process.pid, process.create_time()] = user + system, children_user + children_system
    return family


def _growth(before: FamilyTime, after: FamilyTime) -> float:
    """CPU seconds that a tree of processes has used between two measurements.

    No difference of sums: a process that ends takes all its time along, unless its parent waits for it.
    """
    own = sum(seconds - before.get(key, (0.0, 0.0))[0] for key, (seconds, _) in after.items())
    waited_for = sum(children for _, children in after.values()) - sum(
        children for key, (_, children) in before.items() if key in after
    )
    ended = sum(sum(seconds) for key, seconds in before.items() if key not in after)
    return own + max(0.0, waited_for - ended)
