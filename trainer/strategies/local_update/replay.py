"""Replay: a simulation in the order of events that a distributed run has recorded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.ticket_source import SyncReason
from .ops import Compute, Pull, Push
from .simulator import Action, SimulatedWorker, Simulation


class Replay(Simulation):
    """Simulated workers in the order that a distributed run's server has recorded.

    Args:
        events: (worker, kind) in the order of their effects at the server: begin (of a work range), ticket, pull, push.
    """

    def __init__(self, *arguments: Any, events: list[tuple[int, str]]):
        super().__init__(*arguments)
        self.work_ranges: list[list[tuple[int, str]]] = []
        for number, kind in events:
            if kind == "begin":
                self.work_ranges.append([])
            else:
                self.work_ranges[-1].append((number, kind))

    def tickets(self) -> Iterator[int]:
        """
        Raises:
            ValueError: the recording ends before the training, or is of another config.
        """
        if not self.work_ranges:
            raise ValueError("the recording ends before the training does: replay it with the config it was made with")
        for number, kind in self.work_ranges.pop(0):
            self._replay(self.workers[number], kind)
            if isinstance(self.workers[number].pending, Compute):
                yield from self._compute(self.workers[number])
        work = self.queue.work
        assert work is not None
        if self.queue.rounds == work.end_round:
            self.sync = "epoch"
        else:
            self.sync = "warm" if self.queue.ends_warm_start and not self.state.save_wanted else "save"

    def _replay(self, worker: SimulatedWorker, kind: str) -> None:
        if kind == "ticket":
            drawn = self.queue.draw(worker.number)
            if not isinstance(drawn, int):
                raise ValueError("the recording has more tickets than this config hands out")
            worker.ticket, worker.steps = drawn, worker.rule.step()
            self._advance(worker)
            return
        if worker.pending is None:  # a flush before a synchronization
            worker.steps = worker.rule.flush()
            self._advance(worker)
        wanted = "pull" if isinstance(worker.pending, Pull) else "push" if isinstance(worker.pending, Push) else "none"
        if wanted != kind:
            raise ValueError(f"the recording has a {kind} of worker {worker.number} where this config has {wanted}")
        self._take_effect(worker)

    def request_sync(self, reason: SyncReason) -> None:
        """The recording determines when workers synchronize."""

    def _schedule(self, time: float, worker: SimulatedWorker, action: Action) -> None:
        """The recording determines the order."""

    def _send(self, worker: SimulatedWorker, op: Pull | Push) -> None:
        """The recording determines when it takes effect."""
        assert self.shard is not None
        self.ledger.with_server(0, self.shard.values.nbytes)


def read_events(path: Path) -> list[tuple[int, str]]:
    """A recording: one `worker,kind` a line.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        return [(int(worker), kind) for worker, kind in lines]
    except (OSError, ValueError) as error:
        raise ValueError(f"strategy.execution.replay={path} cannot be read: {error}") from error
