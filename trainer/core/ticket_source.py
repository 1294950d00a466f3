"""Interface between the training loop and the work queue of asynchronous workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

SyncReason = Literal["epoch", "save", "stop", "warm"]
"""Why all workers synchronize: all tickets of the work range are trained; a checkpoint or an end is requested; the warm
start is trained, and the workers that have waited fetch its result."""


@dataclass(frozen=True)
class WorkRange:
    """Rounds between two synchronizations; a round is a global batch, one slice for each worker."""

    serial: int
    """Number of the work range: every worker announces it, and a repeated announcement has the same number."""
    epoch: int
    first_round: int
    """First round of the epoch."""
    end_round: int
    step: int
    """Rounds trained before this work range, over all epochs."""


class TicketSource(Protocol):
    """Tickets of this process. The loop trains from one synchronization of all workers to the next."""

    prefetches: bool
    """Whether a ticket may be drawn before the previous ones are trained."""

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        """Start a work range; every worker calls it."""
        ...

    def numbers(self) -> Iterator[int]:
        """This process's tickets until the next synchronization: n is slice n % workers of round n // workers."""
        ...

    def ticket_done(self) -> None:
        """The oldest of this process's tickets is trained."""
        ...

    def request_sync(self, reason: SyncReason) -> None:
        """Have all workers synchronize after the current round."""
        ...

    def synchronize(self) -> SyncReason | None:
        """Wait for all workers, with all tickets trained. Returns the reason; None: there are more tickets."""
        ...

    def completed_rounds(self) -> int:
        """After synchronizing: rounds of the epoch that are trained."""
        ...
