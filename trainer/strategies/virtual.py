"""All workers of a run in one process and in virtual time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..servers import files
from ..state import RunState
from . import measures
from .requests import Compute, Rule
from .saved_workers import load_worker, optimizer_state, saved_worker
from .simulation import Simulation, clones, settings
from .turns import SimulatedTurns


class Virtual:
    """The workers and the one server of a simulation; see `workers_here.WorkersHere`."""

    def __init__(self, simulation: Simulation, state: RunState):
        self.simulation = simulation
        self.state = state
        self.turns = SimulatedTurns(simulation)
        simulation.attach(state)

    @property
    def rules(self) -> Sequence[Rule]:
        return [worker.rule for worker in self.simulation.workers]

    @property
    def current(self) -> Rule:
        return (self.simulation.current or self.simulation.workers[0]).rule

    def start(self, weights: Tensor) -> None:
        for rule in self.rules:
            rule.start(weights)

    def start_servers(self, weights: Tensor) -> None:
        if self.simulation.piece is not None:
            self.simulation.piece.values.copy_(weights)

    def begin(self) -> None:
        """It has happened before the loop was given the worker's ticket."""

    def stepped(self) -> None:
        self.simulation.stepped()

    def judged(self) -> Tensor:
        return self.simulation.finish("judged")[0]

    def shared(self) -> Tensor | None:
        simulation = self.simulation
        if simulation.piece is not None:
            return simulation.piece.values
        # of workers in lockstep, the step ends with the last one's
        computing = any(isinstance(worker.pending, Compute) for worker in simulation.workers)
        return None if computing else self.rules[0].shared()

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        each = zip(*(worker.buffers for worker in self.simulation.workers), strict=True)
        return [torch.stack(b).mean(0) if b[0].is_floating_point() else b[0] for b in each]

    def each(self, task: nn.Module) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for worker in self.simulation.workers:
            yield worker.replica.values, worker.buffers

    def saved(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        return [saved_worker(w.replica, w.rule, w.buffers, optimizer) for w in self.simulation.workers]

    def load(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        for worker, own in zip(self.simulation.workers, saved, strict=True):
            load_worker(worker.replica, worker.rule, worker.buffers, optimizer, own)

    def inherit(self, task: nn.Module, optimizer: Optimizer) -> None:
        for worker in self.simulation.workers:
            worker.replica.own_state = optimizer_state(optimizer)
            worker.replica.own_groups = settings(optimizer)
            worker.buffers = clones(task)

    def save_servers(self, step: int) -> int:
        if self.simulation.piece is None:
            return 0
        files.save(self.simulation.piece, self.state.run_dir, step, server=0)
        return 1

    def restore_servers(self, step: int, servers: int) -> None:
        piece = self.simulation.piece
        assert piece is not None
        piece.restore(files.load(self.state.run_dir, step, servers, 0, piece.values.numel()))

    def measured(self) -> tuple[dict[str, float], Counter[int]]:
        piece = self.simulation.piece
        late = Counter[int]() if piece is None else piece.staleness
        load = {} if piece is None else {"pushes": float(piece.load.pushes)}
        clock = {"ahead/simulated_seconds": self.simulation.now}
        return {**measures.scalars(self.rules, late, load), **clock}, late

    def leave(self) -> None:
        """There is no server but the simulation's own."""
