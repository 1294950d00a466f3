"""The worker's side of asynchronous SGD: Downpour (Dean et al. 2012, NIPS), GPU A-SGD (Paine et al. 2013)."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .flat_parameters import Replica
from .requests import Compute, Pull, Push, Steps


class Downpour:
    """Every `n_fetch` steps x <- w of the servers; every `n_push` steps the sum of the raw gradients since the last
    push goes to the servers, whose optimizer steps with it: w <- w - lr sum g, for plain SGD.

    Between two fetches the worker moves by itself: x <- x - lr g. Before a meeting (a checkpoint, an epoch's end) it
    pushes what it has, and fetches anew after it.
    """

    lockstep: ClassVar[bool] = False
    steps_locally: ClassVar[bool] = False

    def __init__(self, replica: Replica, n_fetch: int, n_push: int, share_of_rate: Callable[[], float]):
        """
        Args:
            share_of_rate: factor on the learning rate now; 1 / workers where their updates add up.
        """
        self.replica = replica
        self.n_fetch = n_fetch
        self.n_push = n_push
        self.share_of_rate = share_of_rate
        self.since_fetch = 0
        self.since_push = 0
        self.gathered: Tensor | None = None
        self.rates: tuple[float, ...] = ()
        """Of the last gradient: a sum that is pushed at a meeting is stepped at the rates that it was computed at."""
        self.distance: Tensor | None = None

    def start(self, weights: Tensor) -> None:
        self.replica.values.copy_(weights)

    def step(self) -> Steps:
        if self.since_fetch == 0:
            weights = yield Pull()
            self.distance = (self.replica.values - weights).norm() / weights.norm()
            self.replica.values.copy_(weights)
        yield Compute()
        gradient = self.replica.gradient()
        self.rates = self._rates()
        self.since_fetch = (self.since_fetch + 1) % self.n_fetch
        self.since_push = (self.since_push + 1) % self.n_push
        if self.since_fetch:
            self.replica.values.sub_(self.replica.scaled(gradient, self.rates))
        self.gathered = gradient if self.gathered is None else self.gathered.add_(gradient)
        if self.since_push == 0:
            yield from self._push()

    def _rates(self) -> tuple[float, ...]:
        share = self.share_of_rate()
        return tuple(rate * share for rate in self.replica.learning_rates())

    def _push(self) -> Steps:
        gathered, self.gathered = self.gathered, None
        assert gathered is not None
        yield Push(gathered, self.rates)

    def settle(self) -> Steps:
        if self.gathered is not None:
            yield from self._push()
        self.since_fetch = self.since_push = 0

    def judged(self) -> Steps:
        return (yield Pull())

    def shared(self) -> None:
        return None

    def state(self) -> dict[str, Any]:
        assert self.gathered is None
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing outlives a meeting."""


def server_optimizer(
    target: Any, settings: dict[str, Any], weight_decays: Sequence[float | None], values: Tensor,
    segments: list[tuple[int, int]], n_push: int,
) -> torch.optim.Optimizer:  # fmt: skip
    """torch's own optimizer over a server's piece of the parameters.

    Args:
        target: the optimizer's class.
        settings: its arguments.
        weight_decays: of each parameter group; None: that of the settings.
        values: the piece, stepped in place.
        segments: (parameter group, elements) of each stretch of the piece.
        n_push: gradients are sums over so many steps, and the weights decay once for all of them.

    Returns:
        An optimizer whose groups carry their `number`: a piece need not hold a part of every group.
    """
    groups: list[dict[str, Any]] = [{"params": [], "number": number} for number in range(len(weight_decays))]
    start = 0
    for group, elements in segments:
        stretch = torch.nn.Parameter(values[start : start + elements])
        groups[group]["params"].append(stretch)
        start += elements
    for group, decay in zip(groups, weight_decays, strict=True):
        own = settings.get("weight_decay") if decay is None else decay
        if own:
            group["weight_decay"] = own * n_push
        elif decay is not None:
            group["weight_decay"] = decay
    optimizer: torch.optim.Optimizer = target([group for group in groups if group["params"]], **settings)
    return optimizer
