"""Turns at one counter: kept by the first server, or by a simulation."""

from collections.abc import Callable, Iterator

from ..servers.link import ServerLink
from ..servers.tickets import Meeting, Stretch
from .simulation import Simulation


class LinkTurns:
    """The first server keeps the counter."""

    reads_ahead = True

    def __init__(self, link: ServerLink, settle: Callable[[], None], barrier: Callable[[], bool]):
        self.link = link
        self.settle = settle
        self.barrier = barrier
        self._wanted: Meeting | None = None
        self._meeting: Meeting | None = None
        self._serial = 0
        self._trained = 0
        self._joins = False

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        if not self._joins:
            self.barrier()  # nobody goes on while the first worker still reads what the servers hold
        self._joins = False
        self._serial += 1
        self._wanted, self._trained = None, 0
        self.link.begin(Stretch(self._serial, epoch, first_round, end_round, step))

    def join(self, serial: int) -> None:
        """The others are at this stretch already."""
        self._serial = serial - 1
        self._joins = True

    def numbers(self) -> Iterator[int]:
        while True:
            given = self.link.ticket(self._wanted, self._trained)
            if isinstance(given, str):
                self._meeting = given
                return
            yield given

    def trained(self) -> None:
        self._trained += 1

    def ask(self, meeting: Meeting) -> None:
        if self._wanted != "stop":
            self._wanted = meeting

    def meet(self) -> Meeting | None:
        self.settle()
        self.link.flush()  # another worker could fetch or save before the servers have applied it
        if self.barrier():
            return None
        assert self._meeting is not None
        return self._meeting

    def round(self) -> int:
        return self.link.round


class SimulatedTurns:
    """The simulation keeps it."""

    reads_ahead = False

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self._serial = 0

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        self._serial += 1
        self.simulation.begin(Stretch(self._serial, epoch, first_round, end_round, step))

    def numbers(self) -> Iterator[int]:
        return self.simulation.numbers()

    def trained(self) -> None:
        """A simulation knows."""

    def ask(self, meeting: Meeting) -> None:
        self.simulation.ask(meeting)

    def meet(self) -> Meeting:
        self.simulation.finish("settle")
        assert self.simulation.meeting is not None
        return self.simulation.meeting

    def round(self) -> int:
        return self.simulation.tickets.round
