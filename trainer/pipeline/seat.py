"""A worker of a pipeline as its coordinator sees it."""

import time
from dataclasses import dataclass

from ..launch.line import Line
from .board import Visit


@dataclass
class Assigned:
    """A visit that a worker is to make, or makes."""

    number: int
    """Among all visits of the pipeline."""
    visit: Visit
    seconds: float
    """As estimated."""
    begun: float | None = None
    """By the monotonic clock: when the worker has begun to train."""

    def left(self) -> float:
        """Seconds until it is expected to end; of one that is overdue a tenth of what it has taken."""
        if self.begun is None:
            return self.seconds
        taken = time.monotonic() - self.begun
        return max(self.seconds - taken, 0.1 * (taken - self.seconds), 0.0)


@dataclass
class Seat:
    """The present visit of a worker, and the next one, whose model comes meanwhile."""

    rank: int
    line: Line
    present: Assigned | None = None
    next: Assigned | None = None
    left: bool = False
    """It has said good-bye."""

    @property
    def lost(self) -> bool:
        return self.line.closed and not self.left

    def free_in(self) -> float:
        """Seconds until it is expected to have nothing to do."""
        return sum(assigned.left() for assigned in (self.present, self.next) if assigned is not None)
