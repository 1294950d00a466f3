"""Workers on a quadratic, driven by their update rules op by op, without a loop or a network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leyden.trainer.strategies.local_update.flat_parameters import FlatParameters, Replica
from leyden.trainer.strategies.local_update.ops import Compute, Pull, Push, Steps, Sum, UpdateRule
from leyden.trainer.strategies.param_server.shard import ParamShard


class Worker:
    """A worker whose loss is 1/2 curvature x^2 in every coordinate."""

    def __init__(self, start: list[float], rule: Callable[[Replica], UpdateRule], curvature: float = 1.0, **sgd: Any):
        self.module = nn.ParameterList([torch.tensor([value], dtype=torch.float64) for value in start])
        self.flat = FlatParameters(self.module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), **sgd)
        self.rule = rule(Replica(self.flat, self.flat.values, self.optimizer))
        self.rule.start(self.flat.values)
        self.curvature = curvature
        self.steps: Steps | None = None

    @property
    def x(self) -> list[float]:
        return self.flat.values.tolist()

    def compute(self) -> None:
        for parameter in self.flat.parameters:
            parameter.grad = self.curvature * parameter.detach().clone()
        if self.rule.steps_locally:
            self.optimizer.step()


def step(worker: Worker, number: int = 0, shard: ParamShard | None = None) -> None:
    """One whole step of a worker that needs no other worker."""
    steps, result = worker.rule.step(), None
    while True:
        try:
            op = steps.send(result)
        except StopIteration:
            return
        result = None
        if isinstance(op, Compute):
            worker.compute()
        elif isinstance(op, Pull):
            assert shard is not None
            result = shard.pull(number).clone()
        else:
            assert isinstance(op, Push)
            assert shard is not None
            shard.push(number, op.value, op.learning_rates)


def together(workers: list[Worker]) -> None:
    """One step of workers in lockstep."""
    running = [worker.rule.step() for worker in workers]
    results: list[Any] = [None] * len(workers)
    while True:
        sums: list[Tensor] = []
        yielded = 0
        for number, steps in enumerate(running):
            try:
                op = steps.send(results[number])
            except StopIteration:
                continue
            yielded += 1
            if isinstance(op, Compute):
                workers[number].compute()
            else:
                assert isinstance(op, Sum)
                sums.append(op.value)
        if not sums:
            if yielded == 0:
                return
            results = [None] * len(workers)
        else:
            results = [torch.stack(sums).sum(0)] * len(workers)
