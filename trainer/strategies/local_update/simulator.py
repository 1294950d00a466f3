"""Discrete-event simulation of workers and one server in one process."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from torch import Tensor, nn

from ...core.state import RunState
from ...core.ticket_source import SyncReason, WorkRange
from ...core.traffic import Ledger
from ..param_server.shard import ParamShard
from ..param_server.work_queue import WorkQueue
from .delay_models import DelayModel
from .flat_parameters import Replica
from .ops import Compute, Op, Pull, Push, Steps, Sum, UpdateRule

Action = Literal["ready", "computed", "transferred"]


@dataclass
class SimulatedWorker:
    """State of one worker."""

    number: int
    replica: Replica
    rule: UpdateRule
    buffers: list[Tensor]
    schedules: list[dict[str, Any]]
    step: int = 0
    """Training step after its last ticket, in rounds."""
    ticket: int = -1
    steps: Steps = field(default_factory=lambda: iter(()))  # pyright: ignore[reportAssignmentType]
    pending: Op | None = None


class Simulation:
    """Event queue of all workers and one server. Bitwise reproducible: nothing in it depends on real time.

    The loop draws the next ticket: the simulation processes events until a worker's computation ends, loads that
    worker's weights into the module, and has the loop compute the gradient then. The worker trains on what it had
    pulled when the computation began.
    """

    def __init__(
        self,
        workers: list[SimulatedWorker],
        shard: ParamShard | None,
        queue: WorkQueue,
        delays: DelayModel,
        ledger: Ledger,
    ):
        self.workers = workers
        self.ledger = ledger
        self.shard = shard
        self.queue = queue
        self.delays = delays
        self.now = 0.0
        """Seconds of simulated time."""
        self.events: list[tuple[float, int, int, Action]] = []
        self.event_numbers = count()
        self.link_free_at = 0.0
        self.sums: dict[int, Tensor] = {}
        self.blocked_pushes: list[SimulatedWorker] = []
        """Workers whose push waits for an older one (bounded staleness)."""
        self.without_ticket: list[SimulatedWorker] = []
        """Workers that wait for a ticket."""
        self.current: SimulatedWorker | None = None
        self.sync: SyncReason | None = None

    def attach(self, state: RunState) -> None:
        self.state = state
        self.buffers = list(state.task.buffers())

    def begin(self, work: WorkRange) -> None:
        """Start a work range of all workers."""
        self.queue.begin(work)
        self.sync = None
        for worker in self.workers:
            self._note_position(worker)

    def request_sync(self, reason: SyncReason) -> None:
        """Have all workers synchronize after the current round."""
        self.queue.request_sync(reason)

    def tickets(self) -> Iterator[int]:
        """Tickets in the order in which their gradients are ready. After each, the loop makes that step."""
        self.events, self.without_ticket = [], []
        self.link_free_at = self.now
        for worker in self.workers:
            self._schedule(self.now, worker, "ready")
        while self.events:
            self.now, _, number, action = heapq.heappop(self.events)
            worker = self.workers[number]
            if action == "ready":
                self._next_ticket(worker)
            elif action == "transferred":
                self._take_effect(worker)
            else:
                yield from self._compute(worker)
        assert self.sync is not None, "every worker waits for another"

    def _compute(self, worker: SimulatedWorker) -> Iterator[int]:
        self._load_into_loop(worker)
        self.current = worker
        yield worker.ticket
        self.current = None
        self._note_position(worker)

    def after_step(self) -> None:
        """The loop has the current worker's gradient, and its optimizer's step where it makes one."""
        worker = self.current
        assert worker is not None
        self._store_from_loop(worker)
        self._advance(worker)

    def _schedule(self, time: float, worker: SimulatedWorker, action: Action) -> None:
        heapq.heappush(self.events, (time, next(self.event_numbers), worker.number, action))

    def _next_ticket(self, worker: SimulatedWorker) -> None:
        drawn = self.queue.draw(worker.number)
        if drawn is None:
            self.without_ticket.append(worker)
            return
        if isinstance(drawn, str):
            self.sync = drawn
        else:
            worker.ticket = drawn
            worker.steps = worker.rule.step()
            self._advance(worker)
        waiting, self.without_ticket = self.without_ticket, []
        for other in waiting:
            self._schedule(self.now, other, "ready")

    def _advance(self, worker: SimulatedWorker, result: Any = None) -> None:
        """Run the worker's rule up to its next op."""
        try:
            op = worker.steps.send(result)
        except StopIteration:
            worker.pending = None
            self._schedule(self.now, worker, "ready")
            return
        worker.pending = op
        if isinstance(op, Compute):
            assert self.queue.work is not None
            seconds = self.delays.compute(worker.number, self.queue.work.epoch, worker.ticket)
            self._schedule(self.now + seconds, worker, "computed")
        elif isinstance(op, Sum):
            self.sums[worker.number] = op.value
            if len(self.sums) == len(self.workers):
                self._sum_up()
        else:
            self._send(worker, op)

    def _send(self, worker: SimulatedWorker, op: Pull | Push) -> None:
        """An op takes effect when its transfer over the servers' link has ended."""
        assert self.shard is not None
        self.ledger.with_server(0, self.shard.values.nbytes)
        seconds = self.delays.transfer(self.shard.values.nbytes)
        if seconds == 0.0:
            self._take_effect(worker)
            return
        self.link_free_at = max(self.now, self.link_free_at) + seconds
        self._schedule(self.link_free_at, worker, "transferred")

    def _take_effect(self, worker: SimulatedWorker) -> None:
        """Apply the worker's pending op, and resume its rule with the result."""
        op, shard = worker.pending, self.shard
        if isinstance(op, Sum):
            self._advance(worker, self.sum)
            return
        assert shard is not None
        if isinstance(op, Pull):
            self._advance(worker, shard.pull(worker.number).clone())
            return
        assert isinstance(op, Push)
        if not shard.may_push(worker.number):
            self.blocked_pushes.append(worker)
            return
        shard.push(worker.number, op.value, op.learning_rates)
        self._advance(worker)
        waiting, self.blocked_pushes = self.blocked_pushes, []
        for other in waiting:
            self._take_effect(other)

    def _sum_up(self) -> None:
        """Sum up in the order of ranks: bitwise the same on every worker."""
        total = self.sums[0].clone()
        for worker in self.workers[1:]:
            total += self.sums[worker.number]
        self.sum, self.sums = total, {}
        share = 2 * (len(self.workers) - 1) / len(self.workers)
        self.ledger.all_reduce(total.nbytes * len(self.workers))
        ends = self.now + self.delays.transfer(share * total.nbytes)
        for worker in self.workers:
            if ends > self.now:
                self._schedule(ends, worker, "transferred")
            else:
                self._advance(worker, total.clone())

    def run_at_sync(self, name: Literal["flush", "eval_weights"]) -> list[Any]:
        """Run what every worker's rule does at a synchronization point. Returns the rules' results."""
        returned: list[Any] = [None] * len(self.workers)
        steps = [getattr(worker.rule, name)() for worker in self.workers]
        results: list[Any] = [None] * len(self.workers)
        running = set(range(len(self.workers)))
        while running:
            sums: dict[int, Tensor] = {}
            for number in sorted(running):
                try:
                    op = steps[number].send(results[number])
                except StopIteration as end:
                    returned[number] = end.value
                    running.discard(number)
                    continue
                results[number] = self._execute_now(number, op, sums)
            if sums:
                total = sum(sums[number] for number in sorted(sums))
                results = [total for _ in self.workers]
        return returned

    def _execute_now(self, number: int, op: Op, sums: dict[int, Tensor]) -> Any:
        """Without simulated time: a synchronization point is not part of a step."""
        if isinstance(op, Sum):
            sums[number] = op.value
            return None
        assert self.shard is not None
        if isinstance(op, Pull):
            return self.shard.values.clone()
        assert isinstance(op, Push)
        self.ledger.with_server(0, self.shard.values.nbytes)
        self.shard.push(number, op.value, op.learning_rates)
        return None

    def _load_into_loop(self, worker: SimulatedWorker) -> None:
        """Load the worker's weights, buffers, optimizer state and schedules into those of the loop."""
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

    def _store_from_loop(self, worker: SimulatedWorker) -> None:
        worker.replica.values.copy_(worker.replica.flat.values)
        worker.replica.own_groups = group_settings(self.state.raw_optimizer)
        for buffer, own in zip(self.buffers, worker.buffers, strict=True):
            own.copy_(buffer)

    def _note_position(self, worker: SimulatedWorker) -> None:
        """Note the worker's step, and the learning rates of that step."""
        worker.step = self.state.step
        worker.schedules = [copy(entry.scheduler.state_dict()) for entry in self.state.schedules]
        worker.replica.own_groups = group_settings(self.state.raw_optimizer)


def group_settings(optimizer: Any) -> list[dict[str, Any]]:
    """Options of each parameter group, without its parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def empty_optimizer_state() -> Any:
    return defaultdict(dict)


def copy_buffers(module: nn.Module) -> list[Tensor]:
    return [buffer.detach().clone() for buffer in module.buffers()]
