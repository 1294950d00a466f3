"""Distributed executor: one worker process, which runs its update rule over all-reduces and parameter servers."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ...base.log import log
from ...core.loggers.files import cut_logger
from ...core.state import RunState
from ...core.traffic import Ledger
from ..param_server.client import ParamServerClient
from . import metrics
from .flat_parameters import Replica
from .ops import Compute, Op, Pull, Push, Steps, Sum, UpdateRule
from .simulator import copy_buffers
from .ticket_sources import ServerTicketSource
from .worker_state import load_worker, worker_state


class DistributedExecutor:
    """One worker of several, in a process of its own; see `executor.Executor`.

    Args:
        client: of the servers; None for a rule without servers.
        worker: number of the worker.
        elastic: the workers have no process group, and communicate through the servers alone.
    """

    def __init__(
        self, replica: Replica, rule: UpdateRule, ledger: Ledger, client: ParamServerClient | None, state: RunState,
        worker: int, elastic: bool,
    ):  # fmt: skip
        self.replica = replica
        self.rule = rule
        self.ledger = ledger
        self.client = client
        self.state = state
        self.worker = worker
        self.elastic = elastic
        self.ticket_source = (
            None
            if client is None
            else ServerTicketSource(client, self._flush, client.barrier if elastic else self._barrier)
        )
        self._steps: Steps | None = None

    @property
    def rules(self) -> Sequence[UpdateRule]:
        return [self.rule]

    @property
    def current_rule(self) -> UpdateRule:
        return self.rule

    def _barrier(self) -> bool:
        self.state.fabric.barrier()
        return False

    def start(self, weights: Tensor) -> None:
        self.rule.start(weights)

    def start_servers(self, weights: Tensor) -> None:
        if self.client is not None:
            if self.worker == 0:
                self.client.start(weights)
            self._barrier()

    def join(self) -> None:
        """Join the other workers after a restart: at their position, with the servers' parameters."""
        assert self.client is not None
        assert self.ticket_source is not None
        work, state = self.client.join(), self.state
        if work is None:
            log.info("the other workers have finished: nothing is left to do")
            # not through the end of a run: it would evaluate, and wait for workers and servers that have exited
            os._exit(0)
        self.ticket_source.join(work.serial)
        self.rule.start(self.client.read())
        for entry in state.schedules:
            was, now = (state.step, work.step) if entry.interval == "step" else (state.epoch, work.epoch)
            for _ in range(now // entry.frequency - was // entry.frequency):
                entry.scheduler.step()
        state.epoch, state.step, state.step_in_epoch = work.epoch, work.step, work.first_round
        for logger in state.fabric.loggers if self.worker == 0 else ():
            cut_logger(logger, state.step)
        log.info("worker %d joins again at epoch %d, step %d", self.worker, state.epoch + 1, state.step)

    def before_gradient(self) -> None:
        if self._steps is None:
            self._steps = self.rule.step()
            self._run(self._steps)

    def after_step(self) -> None:
        assert self._steps is not None
        steps, self._steps = self._steps, None
        self._run(steps)

    def eval_weights(self) -> Tensor:
        return self._run_at_sync("eval_weights")

    def _flush(self) -> None:
        self._run_at_sync("flush")

    def _run_at_sync(self, name: Literal["flush", "eval_weights"]) -> Any:
        """Run what the rule does at a synchronization point."""
        return self._run(getattr(self.rule, name)(), evaluating=name == "eval_weights")

    def _run(self, steps: Steps, evaluating: bool = False) -> Any:
        """Run ops up to the next gradient, or to the end, whose value is returned."""
        result: Any = None
        try:
            while True:
                op = steps.send(result)
                if isinstance(op, Compute):
                    return None
                result = self._execute(op, evaluating)
        except StopIteration as end:
            return end.value

    def _execute(self, op: Op, evaluating: bool) -> Any:
        if isinstance(op, Sum):
            began = self.ledger.now()
            total = op.value.to(self.replica.values.device).clone()
            dist.all_reduce(total)
            self.ledger.all_reduce(total.nbytes)
            self.ledger.waited(began)
            return total
        assert self.client is not None
        if isinstance(op, Pull):
            return self.client.read() if evaluating else self.client.pull()
        assert isinstance(op, Push)
        return self.client.push(op.value, op.learning_rates)

    def shared_weights(self) -> Tensor | None:
        if self.client is None:
            return self.rule.shared_weights()
        return self.client.read() if self.worker == 0 else None

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        buffers = copy_buffers(task)
        for buffer in buffers:
            if buffer.is_floating_point() and not self.elastic:
                dist.all_reduce(buffer)
                buffer /= dist.get_world_size()
        return buffers

    def worker_weights(self, task: nn.Module) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for worker in range(dist.get_world_size()):
            values, buffers = self.replica.values.clone(), copy_buffers(task)
            for tensor in (values, *buffers):
                dist.broadcast(tensor, worker)
            yield values, buffers

    def worker_states(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        return [worker_state(self.replica, self.rule, copy_buffers(task), optimizer)]

    def load_worker_states(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        load_worker(self.replica, self.rule, list(task.buffers()), optimizer, saved[self.worker])

    def replicate(self, task: nn.Module, optimizer: Optimizer) -> None:
        """Nothing to copy: buffers and state are this worker's own."""

    def save_servers(self, step: int) -> int:
        if self.client is None:
            return 0
        if self.worker == 0:
            self.client.save(step)
        return len(self.client.connections)

    def restore_servers(self, step: int, servers: int) -> None:
        assert self.client is not None
        if self.worker == 0:
            self.client.restore(step, servers)
        self._barrier()

    def collect_metrics(self) -> tuple[dict[str, float], Counter[int]]:
        load: dict[str, float] = {}
        staleness = Counter[int]()
        if self.client is not None and self.worker == 0:
            load, staleness = self.client.measure()
        return metrics.scalars(self.rules, staleness, load), staleness

    def leave(self) -> None:
        if self.client is not None:
            self.client.leave()
