"""Suspicion of a hang, long before trainer.hang_timeout: what a phase took so far, and the CPU time of its process."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ...base.heartbeat import CHECKPOINT, PREPARATION, START, HeartbeatReading

MIN_S = 10.0
"""Least time without a heartbeat that is suspicious."""
_MIN_CHECKPOINT_S = 60.0
"""A file server may take that long for a flush."""
_MULTIPLE = 4.0
"""A phase is suspicious when it takes this many times the longest that it took before."""
_BUSY = 0.3
"""Cores. A process that computes (a compilation, a long batch) is no more than slow."""
BUSY_LIMIT_S = 300.0
"""Seconds after which a busy process is suspicious, too: waiting for a GPU can keep a core busy."""


class Suspicion:
    """Whether one process, which makes no progress, takes longer than its phases usually do.

    Args:
        cpu_seconds: of the process and its descendants.
    """

    def __init__(self, cpu_seconds: Callable[[], float]):
        self._cpu_seconds = cpu_seconds
        self._longest: dict[int, float] = {}
        """Seconds by phase."""
        self._phase, self._stalled_s = START, 0.0
        self._since: tuple[float, float] | None = None
        """Time and CPU seconds, from the middle of the limit on."""
        self.busy = False

    def update(self, reading: HeartbeatReading, stalled_s: float) -> bool:
        """Whether the process is suspicious; `busy` says whether it computes meanwhile.

        Args:
            stalled_s: since its last heartbeat.
        """
        if stalled_s < self._stalled_s:
            self._longest[self._phase] = max(self._stalled_s, self._longest.get(self._phase, 0.0))
            self._since = None
        self._phase, self._stalled_s = reading.phase, stalled_s
        if reading.phase in (START, PREPARATION):
            return False
        least = _MIN_CHECKPOINT_S if reading.phase == CHECKPOINT else MIN_S
        limit = max(least, _MULTIPLE * self._longest.get(reading.phase, 0.0))
        if stalled_s < limit / 2:
            return False
        now = (time.monotonic(), self._cpu_seconds())
        if self._since is None:
            self._since = now
        elapsed = now[0] - self._since[0]
        self.busy = elapsed > 0 and (now[1] - self._since[1]) / elapsed > _BUSY
        return stalled_s >= limit


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds of a process and its descendants, with those for which their main threads waited for a core: where
    the machine is shared, who computes may hardly get one. Processes that have ended are left out."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except (psutil.Error, OSError):
        return 0.0
    return sum(map(_own_cpu_seconds, family))


def _own_cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return times.user + times.system + _seconds_ready(process.pid)


def _seconds_ready(pid: int) -> float:
    """Seconds for which the main thread was ready and not running.

    Not the other threads: one that only looks around now and then waits for a core each time.
    """
    try:
        _, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):  # it has ended, or the kernel does not count
        return 0.0
    return int(waited_ns) / 1e9
