"""Handle of a worker in the coordinator: its channel and its assignments."""

import time
from dataclasses import dataclass

from ..launch.channel import MessageChannel
from .progress import SubEpoch


@dataclass
class Assignment:
    """A sub-epoch assigned to a worker."""

    number: int
    """Among all sub-epochs of the hopping run."""
    sub_epoch: SubEpoch
    seconds: float
    """Estimated duration."""
    started_at: float | None = None
    """Monotonic time; None: the model is not there yet."""

    def remaining(self) -> float:
        """Estimated seconds until it ends; of an overdue one, a tenth of what it is overdue."""
        if self.started_at is None:
            return self.seconds
        elapsed = time.monotonic() - self.started_at
        return max(self.seconds - elapsed, 0.1 * (elapsed - self.seconds), 0.0)


@dataclass
class WorkerHandle:
    """The present assignment of a worker, and the next one, whose model is sent meanwhile."""

    rank: int
    channel: MessageChannel
    current: Assignment | None = None
    next: Assignment | None = None
    left: bool = False
    """Whether it has announced its end."""

    @property
    def lost(self) -> bool:
        return self.channel.closed and not self.left

    def free_in(self) -> float:
        """Estimated seconds until it is idle."""
        return sum(each.remaining() for each in (self.current, self.next) if each is not None)
