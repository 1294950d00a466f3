"""Ticket sources: the work queue of the first server, and that of a simulation."""

from collections.abc import Callable, Iterator

from ...core.ticket_source import SyncReason, WorkRange
from ..param_server.client import ParamServerClient
from .simulator import Simulation


class ServerTicketSource:
    """Tickets from the first server's work queue.

    Args:
        flush: exchange what is pending.
        barrier: waits for all workers; returns whether there are more tickets.
    """

    prefetches = True

    def __init__(self, client: ParamServerClient, flush: Callable[[], None], barrier: Callable[[], bool]):
        self.client = client
        self.flush = flush
        self.barrier = barrier
        self._requested: SyncReason | None = None
        self._reason: SyncReason | None = None
        self._serial = 0
        self._trained = 0
        self._joins = False

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        if not self._joins:
            self.barrier()  # no worker pushes while the first one still reads the servers' parameters
        self._joins = False
        self._serial += 1
        self._requested, self._trained = None, 0
        self.client.begin(WorkRange(self._serial, epoch, first_round, end_round, step))

    def join(self, serial: int) -> None:
        """Take part in a work range that the other workers have begun already."""
        self._serial = serial - 1
        self._joins = True

    def numbers(self) -> Iterator[int]:
        while True:
            drawn = self.client.draw(self._requested, self._trained)
            if isinstance(drawn, str):
                self._reason = drawn
                return
            yield drawn

    def ticket_done(self) -> None:
        self._trained += 1

    def request_sync(self, reason: SyncReason) -> None:
        if self._requested != "stop":
            self._requested = reason

    def synchronize(self) -> SyncReason | None:
        self.flush()
        self.client.flush()  # until the servers have applied it: after the barrier another worker may pull or save
        if self.barrier():
            return None
        assert self._reason is not None
        return self._reason

    def completed_rounds(self) -> int:
        return self.client.rounds


class SimulatedTicketSource:
    """Tickets of all simulated workers, in the order of their gradients."""

    prefetches = False

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self._serial = 0

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        self._serial += 1
        self.simulation.begin(WorkRange(self._serial, epoch, first_round, end_round, step))

    def numbers(self) -> Iterator[int]:
        return self.simulation.tickets()

    def ticket_done(self) -> None:
        """The simulation counts itself."""

    def request_sync(self, reason: SyncReason) -> None:
        self.simulation.request_sync(reason)

    def synchronize(self) -> SyncReason:
        self.simulation.run_at_sync("flush")
        assert self.simulation.sync is not None
        return self.simulation.sync

    def completed_rounds(self) -> int:
        return self.simulation.queue.rounds
