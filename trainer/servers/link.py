"""A worker's end of the lines to all servers: the parameters as if they were in one place."""

from collections import Counter
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..strategies.ledger import Ledger
from .pieces import bounds
from .tickets import Meeting, Stretch
from .wire import MEASURES, MEETINGS, TYPES, Ask, Pair, header


class ServerLink:
    """Connects to every server; blocks until they are there.

    Args:
        values: the worker's flat parameters: length, type and device of what travels.
        segments: (parameter group, elements) of the vector's stretches.
        ledger: counts what this worker sends and what the servers send back to it.
    """

    def __init__(
        self, servers: int, worker: int, incarnation: int, values: Tensor, segments: list[tuple[int, int]],
        ledger: Ledger,
    ):  # fmt: skip
        self.pairs = [Pair(index, worker, incarnation, at_server=False) for index in range(servers)]
        self.bounds = [bounds(values.numel(), servers, index) for index in range(servers)]
        self.segments = torch.tensor(segments, dtype=torch.int64)
        self.like = torch.empty(0, dtype=values.dtype)
        self.device = values.device
        self.elements = values.numel()
        self.ledger = ledger
        self._sent: list[Any] = []
        """Works of a push that is under way, with what must stay as it is until then."""
        self._unanswered = False
        self.round = 0
        """Rounds of the epoch that were given out whole when the last ticket was asked for."""

    def start(self, values: Tensor) -> None:
        """Have the servers begin at these parameters. One worker does it for all."""
        kind = TYPES.index(values.dtype)
        for pair, (start, end) in zip(self.pairs, self.bounds, strict=True):
            pair.send(header(Ask.START, self.elements, kind, len(self.segments)))
            pair.send(self.segments)
            pair.send(values[start:end].cpu())
        self._answers()

    def restore(self, step: int, servers: int) -> None:
        """Have the servers begin at what `servers` of them wrote beside the checkpoint of a step. One does it for all.

        Raises:
            RuntimeError: a server could not read its file, and has ended with the reason.
        """
        kind = TYPES.index(self.like.dtype)
        for pair in self.pairs:
            pair.send(header(Ask.RESTORE, self.elements, kind, len(self.segments), step, servers))
            pair.send(self.segments)
        self._answers()

    def pull(self) -> Tensor:
        """The parameters of all servers: of each as they are at one moment."""
        return self._values(Ask.PULL, counted=True)

    def look(self) -> Tensor:
        """As `pull`, for evaluation and checkpoints."""
        return self._values(Ask.LOOK, counted=False)

    def _values(self, ask: Ask, counted: bool) -> Tensor:
        began = perf_counter()
        self.flush()
        for pair in self.pairs:
            pair.send(header(ask))
        self._answers()
        values = torch.empty(self.elements, dtype=self.like.dtype)
        works = [p.start_receive(values[a:b]) for p, (a, b) in zip(self.pairs, self.bounds, strict=True)]
        for work in works:
            work.wait()
        if counted:
            self._count(began)
        return values.to(self.device)

    def push(self, value: Tensor, rates: tuple[float, ...]) -> None:
        """Send an update on its way; the next request waits until every server has applied it."""
        began = perf_counter()
        self.flush()
        value = value.cpu()
        for pair, (start, end) in zip(self.pairs, self.bounds, strict=True):
            first, second = header(Ask.PUSH, rates=rates), value[start:end]
            self._sent += [(pair.start_send(first), first), (pair.start_send(second), second)]
        self._unanswered = True
        self._count(began)

    def _count(self, began: float) -> None:
        self.ledger.exposed_seconds += perf_counter() - began
        for server, (start, end) in enumerate(self.bounds):
            self.ledger.with_server(server, (end - start) * self.like.element_size())

    def flush(self) -> None:
        """Wait until every server has applied the last push."""
        if self._unanswered:
            for work, _ in self._sent:
                work.wait()
            self._sent = []
            self._unanswered = False
            self._answers()

    def _answers(self) -> list[list[float]]:
        return [pair.receive_header() for pair in self.pairs]

    def begin(self, stretch: Stretch) -> None:
        self.flush()
        numbers = (stretch.serial, stretch.epoch, stretch.first_round, stretch.end_round, stretch.step)
        self.pairs[0].send(header(Ask.BEGIN, *numbers))
        self.pairs[0].receive_header()

    def ticket(self, wanted: Meeting | None, trained: int) -> int | Meeting:
        """The next ticket, or the meeting to go to.

        Args:
            wanted: a meeting that this worker asks for.
            trained: how many tickets it has trained in this stretch.
        """
        self.flush()
        began = perf_counter()
        self.pairs[0].send(header(Ask.TICKET, MEETINGS.index(wanted or ""), trained))
        number, self.round, *_ = (int(told) for told in self.pairs[0].receive_header())
        self.ledger.exposed_seconds += perf_counter() - began
        if number >= 0:
            return number
        meeting = MEETINGS[-number - 1]
        assert meeting
        return meeting

    def meet(self) -> bool:
        """Wait for every worker that is present. Returns whether there is more to train: what a lost one was at."""
        self.flush()
        self.pairs[0].send(header(Ask.MEET))
        return bool(self.pairs[0].receive_header()[0])

    def where(self) -> Stretch | None:
        """Join the others: what they train on; None where they have ended."""
        self.pairs[0].send(header(Ask.WHERE))
        numbers = [int(number) for number in self.pairs[0].receive_header()]
        return None if numbers[0] < 0 else Stretch(*numbers[:5])

    def save(self, step: int) -> None:
        """Have every server write its file beside the checkpoint of this step."""
        self.flush()
        for pair in self.pairs:
            pair.send(header(Ask.SAVE, step))
        self._answers()

    def measure(self) -> tuple[dict[str, float], Counter[int]]:
        """What the servers have done since their start (sums over servers), and the first one's staleness histogram."""
        self.flush()
        for pair in self.pairs:
            pair.send(header(Ask.MEASURE))
        answers = self._answers()
        histograms = [
            pair.receive(torch.empty(int(answer[4]), 2, dtype=torch.int64))
            for pair, answer in zip(self.pairs, answers, strict=True)
        ]
        totals = {name: sum(answer[place] for answer in answers) for place, name in enumerate(MEASURES[:4])}
        return totals, Counter(dict(histograms[0].tolist()))

    def leave(self) -> None:
        """Say good-bye: a server ends when all its workers have."""
        self.flush()
        for pair in self.pairs:
            pair.send(header(Ask.LEAVE))
