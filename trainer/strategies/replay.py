"""A simulation in the order of events that a real run has recorded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..servers.tickets import Meeting
from .requests import Compute, Pull, Push
from .simulation import Action, Simulation, VirtualWorker


class Replay(Simulation):
    """Virtual workers in the order that a real run's server has recorded.

    Args:
        events: (worker, kind) as they arrived at the first server: begin (of a stretch), ticket, pull, push.
    """

    def __init__(self, *arguments: Any, events: list[tuple[int, str]]):
        super().__init__(*arguments)
        self.stretches: list[list[tuple[int, str]]] = []
        for number, kind in events:
            if kind == "begin":
                self.stretches.append([])
            else:
                self.stretches[-1].append((number, kind))

    def numbers(self) -> Iterator[int]:
        """
        Raises:
            ValueError: the recording ends before the training, or is of another config.
        """
        if not self.stretches:
            raise ValueError("the recording ends before the training does: replay it with the config it was made with")
        for number, kind in self.stretches.pop(0):
            self._happen(self.workers[number], kind)
            if isinstance(self.workers[number].pending, Compute):
                yield from self._computed(self.workers[number])
        stretch = self.tickets.stretch
        assert stretch is not None
        if self.tickets.round == stretch.end_round:
            self.meeting = "epoch"
        else:
            self.meeting = "warm" if self.tickets.ends_warm_start and not self.state.save_wanted else "save"

    def _happen(self, worker: VirtualWorker, kind: str) -> None:
        if kind == "ticket":
            given = self.tickets.give(worker.number)
            if not isinstance(given, int):
                raise ValueError("the recording has more tickets than this config gives out")
            worker.ticket, worker.steps = given, worker.rule.step()
            self._advance(worker)
            return
        if worker.pending is None:  # what it gives away before a meeting
            worker.steps = worker.rule.settle()
            self._advance(worker)
        wanted = "pull" if isinstance(worker.pending, Pull) else "push" if isinstance(worker.pending, Push) else "none"
        if wanted != kind:
            raise ValueError(f"the recording says {kind} of worker {worker.number} where this config does {wanted}")
        self._take_effect(worker)

    def ask(self, meeting: Meeting) -> None:
        """They meet where the recorded ones did."""

    def _at(self, time: float, worker: VirtualWorker, action: Action) -> None:
        """The recording says what comes next."""

    def _send(self, worker: VirtualWorker, request: Pull | Push) -> None:
        """It takes effect where the recording says."""
        assert self.piece is not None
        self.ledger.with_server(0, self.piece.values.nbytes)


def read_events(path: Path) -> list[tuple[int, str]]:
    """A recording: one `worker,kind` a line.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        return [(int(worker), kind) for worker, kind in lines]
    except (OSError, ValueError) as error:
        raise ValueError(f"strategy.replay={path} cannot be read: {error}") from error
