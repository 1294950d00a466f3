"""Virtual workers in one process: the update rules driven by a seeded queue of events."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from torch import Tensor, nn

from ..servers.pieces import Piece
from ..servers.tickets import Meeting, Stretch, Tickets
from ..state import RunState
from .delays import Delays
from .flat_parameters import Replica
from .ledger import Ledger
from .requests import Compute, Pull, Push, Request, Rule, Steps, Sum

Action = Literal["ready", "computed", "answered"]


@dataclass
class VirtualWorker:
    """What a worker process would hold."""

    number: int
    replica: Replica
    rule: Rule
    buffers: list[Tensor]
    schedules: list[dict[str, Any]]
    step: int = 0
    """Where training stood after its last ticket, in rounds."""
    ticket: int = -1
    steps: Steps = field(default_factory=lambda: iter(()))  # pyright: ignore[reportAssignmentType]
    pending: Request | None = None


class Simulation:
    """One process acts all workers and one server. Bit-reproducible: nothing in it depends on real time.

    The loop asks for the next ticket: the simulation carries out events until a worker has finished its computation,
    puts that worker's weights into the module, and has the loop compute the gradient then. What the worker sees is what
    it pulled when it began.
    """

    def __init__(
        self, workers: list[VirtualWorker], piece: Piece | None, tickets: Tickets, delays: Delays, ledger: Ledger
    ):
        self.workers = workers
        self.ledger = ledger
        self.piece = piece
        self.tickets = tickets
        self.delays = delays
        self.now = 0.0
        """Virtual seconds."""
        self.events: list[tuple[float, int, int, Action]] = []
        self.order = count()
        self.link_free = 0.0
        self.sums: dict[int, Tensor] = {}
        self.late: list[VirtualWorker] = []
        """Whose push has to wait for an older one."""
        self.early: list[VirtualWorker] = []
        """Who waits for a ticket."""
        self.current: VirtualWorker | None = None
        self.meeting: Meeting | None = None

    def attach(self, state: RunState) -> None:
        self.state = state
        self.buffers = list(state.task.buffers())

    def begin(self, stretch: Stretch) -> None:
        """All workers go on together from here."""
        self.tickets.begin(stretch)
        self.meeting = None
        for worker in self.workers:
            self._note_position(worker)

    def ask(self, meeting: Meeting) -> None:
        """Have all workers meet soon."""
        self.tickets.ask(meeting)

    def numbers(self) -> Iterator[int]:
        """Tickets, in the order in which their gradients are ready. After each, the loop makes that step."""
        self.events, self.early = [], []
        self.link_free = self.now
        for worker in self.workers:
            self._at(self.now, worker, "ready")
        while self.events:
            self.now, _, number, action = heapq.heappop(self.events)
            worker = self.workers[number]
            if action == "ready":
                self._next_ticket(worker)
            elif action == "answered":
                self._take_effect(worker)
            else:
                yield from self._computed(worker)
        assert self.meeting is not None, "every worker waits for another"

    def _computed(self, worker: VirtualWorker) -> Iterator[int]:
        self._put_in(worker)
        self.current = worker
        yield worker.ticket
        self.current = None
        self._note_position(worker)

    def stepped(self) -> None:
        """The loop has the current worker's gradient, and its optimizer's step where it makes one."""
        worker = self.current
        assert worker is not None
        self._take_out(worker)
        self._advance(worker)

    def _at(self, time: float, worker: VirtualWorker, action: Action) -> None:
        heapq.heappush(self.events, (time, next(self.order), worker.number, action))

    def _next_ticket(self, worker: VirtualWorker) -> None:
        given = self.tickets.give(worker.number)
        if given is None:
            self.early.append(worker)
            return
        if isinstance(given, str):
            self.meeting = given
        else:
            worker.ticket = given
            worker.steps = worker.rule.step()
            self._advance(worker)
        waiting, self.early = self.early, []
        for other in waiting:
            self._at(self.now, other, "ready")

    def _advance(self, worker: VirtualWorker, answer: Any = None) -> None:
        """Up to the worker's next request."""
        try:
            request = worker.steps.send(answer)
        except StopIteration:
            worker.pending = None
            self._at(self.now, worker, "ready")
            return
        worker.pending = request
        if isinstance(request, Compute):
            assert self.tickets.stretch is not None
            seconds = self.delays.compute(worker.number, self.tickets.stretch.epoch, worker.ticket)
            self._at(self.now + seconds, worker, "computed")
        elif isinstance(request, Sum):
            self.sums[worker.number] = request.value
            if len(self.sums) == len(self.workers):
                self._sum_up()
        else:
            self._send(worker, request)

    def _send(self, worker: VirtualWorker, request: Pull | Push) -> None:
        """A request takes effect when its transfer over the servers' link has ended."""
        assert self.piece is not None
        self.ledger.with_server(0, self.piece.values.nbytes)
        seconds = self.delays.transfer(self.piece.values.nbytes)
        if seconds == 0.0:
            self._take_effect(worker)
            return
        self.link_free = max(self.now, self.link_free) + seconds
        self._at(self.link_free, worker, "answered")

    def _take_effect(self, worker: VirtualWorker) -> None:
        request, piece = worker.pending, self.piece
        if isinstance(request, Sum):
            self._advance(worker, self.sum)
            return
        assert piece is not None
        if isinstance(request, Pull):
            self._advance(worker, piece.pull(worker.number).clone())
            return
        assert isinstance(request, Push)
        if not piece.may_push(worker.number):
            self.late.append(worker)
            return
        piece.push(worker.number, request.value, request.learning_rates)
        self._advance(worker)
        waiting, self.late = self.late, []
        for other in waiting:
            self._take_effect(other)

    def _sum_up(self) -> None:
        """In the order of ranks, for everybody the same bits."""
        total = self.sums[0].clone()
        for worker in self.workers[1:]:
            total += self.sums[worker.number]
        self.sum, self.sums = total, {}
        share = 2 * (len(self.workers) - 1) / len(self.workers)
        self.ledger.all_reduce(total.nbytes * len(self.workers))
        ends = self.now + self.delays.transfer(share * total.nbytes)
        for worker in self.workers:
            if ends > self.now:
                self._at(ends, worker, "answered")
            else:
                self._advance(worker, total.clone())

    def finish(self, name: Literal["settle", "judged"]) -> list[Any]:
        """A meeting: every worker does what its rule says. Returns the workers' answers."""
        answers: list[Any] = [None] * len(self.workers)
        steps = [getattr(worker.rule, name)() for worker in self.workers]
        replies: list[Any] = [None] * len(self.workers)
        going = set(range(len(self.workers)))
        while going:
            sums: dict[int, Tensor] = {}
            for number in sorted(going):
                try:
                    request = steps[number].send(replies[number])
                except StopIteration as end:
                    answers[number] = end.value
                    going.discard(number)
                    continue
                replies[number] = self._at_once(number, request, sums)
            if sums:
                total = sum(sums[number] for number in sorted(sums))
                replies = [total for _ in self.workers]
        return answers

    def _at_once(self, number: int, request: Request, sums: dict[int, Tensor]) -> Any:
        if isinstance(request, Sum):
            sums[number] = request.value
            return None
        assert self.piece is not None
        if isinstance(request, Pull):
            return self.piece.values.clone()
        assert isinstance(request, Push)
        self.ledger.with_server(0, self.piece.values.nbytes)
        self.piece.push(number, request.value, request.learning_rates)
        return None

    def _put_in(self, worker: VirtualWorker) -> None:
        """The worker's weights, buffers, optimizer and schedules become those of the loop."""
        state, replica = self.state, worker.replica
        replica.flat.values.copy_(replica.values)
        for buffer, own in zip(self.buffers, worker.buffers, strict=True):
            buffer.copy_(own)
        optimizer = state.raw_optimizer
        optimizer.state = replica.optimizer_state
        for group, own in zip(optimizer.param_groups, replica.groups, strict=True):
            group.update(own)
        for entry, kept in zip(state.schedules, worker.schedules, strict=True):
            entry.scheduler.load_state_dict(kept)
        state.step_in_epoch += worker.step - state.step
        state.step = worker.step

    def _take_out(self, worker: VirtualWorker) -> None:
        worker.replica.values.copy_(worker.replica.flat.values)
        worker.replica.own_groups = settings(self.state.raw_optimizer)
        for buffer, own in zip(self.buffers, worker.buffers, strict=True):
            own.copy_(buffer)

    def _note_position(self, worker: VirtualWorker) -> None:
        """The worker's step, and the learning rates of that step."""
        worker.step = self.state.step
        worker.schedules = [copy(entry.scheduler.state_dict()) for entry in self.state.schedules]
        worker.replica.own_groups = settings(self.state.raw_optimizer)


def settings(optimizer: Any) -> list[dict[str, Any]]:
    """What each parameter group says besides its parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def own_optimizer_state() -> Any:
    return defaultdict(dict)


def clones(module: nn.Module) -> list[Tensor]:
    return [buffer.detach().clone() for buffer in module.buffers()]
