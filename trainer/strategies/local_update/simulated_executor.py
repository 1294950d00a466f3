"""Simulated executor: all workers of a run in one process and in simulated time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...core.state import RunState
from ..param_server import checkpoint
from . import metrics
from .ops import Compute, UpdateRule
from .simulator import Simulation, copy_buffers, group_settings
from .ticket_sources import SimulatedTicketSource
from .worker_state import copy_optimizer_state, load_worker, worker_state


class SimulatedExecutor:
    """The workers and the one server of a simulation; see `executor.Executor`."""

    def __init__(self, simulation: Simulation, state: RunState):
        self.simulation = simulation
        self.state = state
        self.ticket_source = SimulatedTicketSource(simulation)
        simulation.attach(state)

    @property
    def rules(self) -> Sequence[UpdateRule]:
        return [worker.rule for worker in self.simulation.workers]

    @property
    def current_rule(self) -> UpdateRule:
        return (self.simulation.current or self.simulation.workers[0]).rule

    def start(self, weights: Tensor) -> None:
        for rule in self.rules:
            rule.start(weights)

    def start_servers(self, weights: Tensor) -> None:
        if self.simulation.shard is not None:
            self.simulation.shard.values.copy_(weights)

    def before_gradient(self) -> None:
        """The simulation has run these ops before it gave the loop the worker's ticket."""

    def after_step(self) -> None:
        self.simulation.after_step()

    def eval_weights(self) -> Tensor:
        return self.simulation.run_at_sync("eval_weights")[0]

    def shared_weights(self) -> Tensor | None:
        simulation = self.simulation
        if simulation.shard is not None:
            return simulation.shard.values
        # in lockstep the step ends with the last worker's
        computing = any(isinstance(worker.pending, Compute) for worker in simulation.workers)
        return None if computing else self.rules[0].shared_weights()

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        each = zip(*(worker.buffers for worker in self.simulation.workers), strict=True)
        return [torch.stack(b).mean(0) if b[0].is_floating_point() else b[0] for b in each]

    def worker_weights(self, task: nn.Module) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for worker in self.simulation.workers:
            yield worker.replica.values, worker.buffers

    def worker_states(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        return [worker_state(w.replica, w.rule, w.buffers, optimizer) for w in self.simulation.workers]

    def load_worker_states(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        for worker, own in zip(self.simulation.workers, saved, strict=True):
            load_worker(worker.replica, worker.rule, worker.buffers, optimizer, own)

    def replicate(self, task: nn.Module, optimizer: Optimizer) -> None:
        for worker in self.simulation.workers:
            worker.replica.own_state = copy_optimizer_state(optimizer)
            worker.replica.own_groups = group_settings(optimizer)
            worker.buffers = copy_buffers(task)

    def save_servers(self, step: int) -> int:
        if self.simulation.shard is None:
            return 0
        checkpoint.save(self.simulation.shard, self.state.run_dir, step, server=0)
        return 1

    def restore_servers(self, step: int, servers: int) -> None:
        shard = self.simulation.shard
        assert shard is not None
        shard.restore(checkpoint.load(self.state.run_dir, step, servers, 0, shard.values.numel()))

    def collect_metrics(self) -> tuple[dict[str, float], Counter[int]]:
        shard = self.simulation.shard
        staleness = Counter[int]() if shard is None else shard.staleness
        load = {} if shard is None else {"pushes": float(shard.load.pushes)}
        clock = {"local_update/simulated_seconds": self.simulation.now}
        return {**metrics.scalars(self.rules, staleness, load), **clock}, staleness

    def leave(self) -> None:
        """A simulation has no server process."""
