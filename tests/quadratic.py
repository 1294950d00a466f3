"""Workers on a quadratic, driven by their update rules request by request, without a loop or a network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leyden.trainer.servers.pieces import Piece
from leyden.trainer.strategies.flat_parameters import FlatParameters, Replica
from leyden.trainer.strategies.requests import Compute, Pull, Push, Rule, Steps, Sum


class Worker:
    """A worker whose loss is 1/2 curvature x^2 in every coordinate."""

    def __init__(self, start: list[float], rule: Callable[[Replica], Rule], curvature: float = 1.0, **sgd: Any):
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


def step(worker: Worker, number: int = 0, piece: Piece | None = None) -> None:
    """One whole step of a worker that needs no other."""
    steps, answer = worker.rule.step(), None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(request, Compute):
            worker.compute()
        elif isinstance(request, Pull):
            assert piece is not None
            answer = piece.pull(number).clone()
        else:
            assert isinstance(request, Push)
            assert piece is not None
            piece.push(number, request.value, request.learning_rates)


def together(workers: list[Worker]) -> None:
    """One step of workers in lockstep."""
    running = [worker.rule.step() for worker in workers]
    answers: list[Any] = [None] * len(workers)
    while True:
        sums: list[Tensor] = []
        asked = 0
        for number, steps in enumerate(running):
            try:
                request = steps.send(answers[number])
            except StopIteration:
                continue
            asked += 1
            if isinstance(request, Compute):
                workers[number].compute()
            else:
                assert isinstance(request, Sum)
                sums.append(request.value)
        if not sums:
            if asked == 0:
                return
            answers = [None] * len(workers)
        else:
            answers = [torch.stack(sums).sum(0)] * len(workers)
