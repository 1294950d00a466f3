"""A worker process that carries out its rule's requests: sums over all workers, pulls from and pushes to servers."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..log import log
from ..servers.link import ServerLink
from ..state import RunState
from . import measures
from .flat_parameters import Replica
from .ledger import Ledger
from .requests import Compute, Pull, Push, Request, Rule, Steps, Sum
from .saved_workers import load_worker, saved_worker
from .simulation import clones
from .turns import LinkTurns


class Live:
    """One worker of several, in a process of its own; see `workers_here.WorkersHere`.

    Args:
        link: to the servers; None for a rule that needs none.
        number: which of the workers it is.
        elastic: it knows the others through the servers alone.
    """

    def __init__(
        self, replica: Replica, rule: Rule, ledger: Ledger, link: ServerLink | None, state: RunState, number: int,
        elastic: bool,
    ):  # fmt: skip
        self.replica = replica
        self.rule = rule
        self.ledger = ledger
        self.link = link
        self.state = state
        self.number = number
        self.elastic = elastic
        self.turns = None if link is None else LinkTurns(link, self._settle, link.meet if elastic else self._barrier)
        self._steps: Steps | None = None

    @property
    def rules(self) -> Sequence[Rule]:
        return [self.rule]

    @property
    def current(self) -> Rule:
        return self.rule

    def _barrier(self) -> bool:
        self.state.fabric.barrier()
        return False

    def start(self, weights: Tensor) -> None:
        self.rule.start(weights)

    def start_servers(self, weights: Tensor) -> None:
        if self.link is not None:
            if self.number == 0:
                self.link.start(weights)
            self._barrier()

    def join(self) -> None:
        """A worker that was started again goes on where the others are, at what the servers hold."""
        assert self.link is not None
        assert self.turns is not None
        stretch, state = self.link.where(), self.state
        if stretch is None:
            log.info("the others have ended: nothing is left to do")
            os._exit(0)
        self.turns.join(stretch.serial)
        self.rule.start(self.link.look())
        for entry in state.schedules:
            was, now = (state.step, stretch.step) if entry.interval == "step" else (state.epoch, stretch.epoch)
            for _ in range(now // entry.frequency - was // entry.frequency):
                entry.scheduler.step()
        state.epoch, state.step, state.step_in_epoch = stretch.epoch, stretch.step, stretch.first_round
        for logger in state.fabric.loggers if self.number == 0 else ():
            if hasattr(logger, "cut_after"):
                logger.cut_after(state.step)  # pyright: ignore[reportAttributeAccessIssue]
        log.info("worker %d joins again at epoch %d, step %d", self.number, state.epoch + 1, state.step)

    def begin(self) -> None:
        if self._steps is None:
            self._steps = self.rule.step()
            self._on(self._steps, None)

    def stepped(self) -> None:
        assert self._steps is not None
        steps, self._steps = self._steps, None
        self._on(steps, None)

    def judged(self) -> Tensor:
        return self._finish("judged")

    def _settle(self) -> None:
        self._finish("settle")

    def _finish(self, name: Literal["settle", "judged"]) -> Any:
        """What the rule does at a meeting, where every worker is."""
        return self._on(getattr(self.rule, name)(), None, looking=name == "judged")

    def _on(self, steps: Steps, answer: Any, looking: bool = False) -> Any:
        """Up to the next gradient, or to the end, whose value is returned."""
        try:
            while True:
                request = steps.send(answer)
                if isinstance(request, Compute):
                    return None
                answer = self._answer(request, looking)
        except StopIteration as end:
            return end.value

    def _answer(self, request: Request, looking: bool) -> Any:
        if isinstance(request, Sum):
            began = perf_counter()
            total = request.value.to(self.replica.values.device).clone()
            dist.all_reduce(total)
            self.ledger.all_reduce(total.nbytes)
            self.ledger.exposed_seconds += perf_counter() - began
            return total
        assert self.link is not None
        if isinstance(request, Pull):
            return self.link.look() if looking else self.link.pull()
        assert isinstance(request, Push)
        return self.link.push(request.value, request.learning_rates)

    def shared(self) -> Tensor | None:
        if self.link is None:
            return self.rule.shared()
        return self.link.look() if self.number == 0 else None

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        buffers = clones(task)
        for buffer in buffers:
            if buffer.is_floating_point() and not self.elastic:
                dist.all_reduce(buffer)
                buffer /= dist.get_world_size()
        return buffers

    def each(self, task: nn.Module) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for worker in range(dist.get_world_size()):
            values, buffers = self.replica.values.clone(), clones(task)
            for tensor in (values, *buffers):
                dist.broadcast(tensor, worker)
            yield values, buffers

    def saved(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        return [saved_worker(self.replica, self.rule, clones(task), optimizer)]

    def load(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        load_worker(self.replica, self.rule, list(task.buffers()), optimizer, saved[self.number])

    def inherit(self, task: nn.Module, optimizer: Optimizer) -> None:
        """They are this worker's own."""

    def save_servers(self, step: int) -> int:
        if self.link is None:
            return 0
        if self.number == 0:
            self.link.save(step)
        return len(self.link.pairs)

    def restore_servers(self, step: int, servers: int) -> None:
        assert self.link is not None
        if self.number == 0:
            self.link.restore(step, servers)
        self._barrier()

    def measured(self) -> tuple[dict[str, float], Counter[int]]:
        load, late = self.link.measure() if self.link is not None and self.number == 0 else ({}, Counter[int]())
        return measures.scalars(self.rules, late, load), late

    def leave(self) -> None:
        if self.link is not None:
            self.link.leave()
