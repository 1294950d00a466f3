"""The worker's side of asynchronous SGD: Downpour (Dean et al. 2012, NIPS), GPU A-SGD (Paine et al. 2013)."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..local_update.flat_parameters import Replica
from ..local_update.ops import Compute, Pull, Push, Steps


class Downpour:
    """Every `n_fetch` steps x <- w of the servers; every `n_push` steps the sum of the raw gradients since the last
    push goes to the servers, whose optimizer steps with it: w <- w - lr sum g, for plain SGD.

    Between two fetches the worker takes local steps: x <- x - lr g. Before a synchronization (a checkpoint, an epoch's
    end) it pushes its pending sum, and fetches afterwards.
    """

    lockstep: ClassVar[bool] = False
    steps_locally: ClassVar[bool] = False

    def __init__(self, replica: Replica, n_fetch: int, n_push: int, lr_factor: Callable[[], float]):
        """
        Args:
            lr_factor: current factor of the learning rate; 1 / workers where their updates add up.
        """
        self.replica = replica
        self.n_fetch = n_fetch
        self.n_push = n_push
        self.lr_factor = lr_factor
        self.steps_since_fetch = 0
        self.steps_since_push = 0
        self.pending: Tensor | None = None
        self.rates: tuple[float, ...] = ()
        """Learning rates of the last gradient: a sum that a flush pushes is stepped at the rates of its own steps."""
        self.distance: Tensor | None = None

    def start(self, weights: Tensor) -> None:
        self.replica.values.copy_(weights)

    def step(self) -> Steps:
        if self.steps_since_fetch == 0:
            weights = yield Pull()
            self.distance = (self.replica.values - weights).norm() / weights.norm()
            self.replica.values.copy_(weights)
        yield Compute()
        gradient = self.replica.gradient()
        self.rates = self._rates()
        self.steps_since_fetch = (self.steps_since_fetch + 1) % self.n_fetch
        self.steps_since_push = (self.steps_since_push + 1) % self.n_push
        if self.steps_since_fetch:
            self.replica.values.sub_(self.replica.scale_groups(gradient, self.rates))
        self.pending = gradient if self.pending is None else self.pending.add_(gradient)
        if self.steps_since_push == 0:
            yield from self._push()

    def _rates(self) -> tuple[float, ...]:
        factor = self.lr_factor()
        return tuple(rate * factor for rate in self.replica.learning_rates())

    def _push(self) -> Steps:
        pending, self.pending = self.pending, None
        assert pending is not None
        yield Push(pending, self.rates)

    def flush(self) -> Steps:
        if self.pending is not None:
            yield from self._push()
        self.steps_since_fetch = self.steps_since_push = 0

    def eval_weights(self) -> Steps:
        return (yield Pull())

    def shared_weights(self) -> None:
        return None

    def state(self) -> dict[str, Any]:
        assert self.pending is None
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to load: a flush leaves nothing pending."""


def server_optimizer(
    target: Any, settings: dict[str, Any], weight_decays: Sequence[float | None], values: Tensor,
    segments: list[tuple[int, int]], n_push: int,
) -> torch.optim.Optimizer:  # fmt: skip
    """The config's torch optimizer over a server's shard of the parameters.

    Args:
        target: the optimizer's class.
        settings: its arguments.
        weight_decays: of each parameter group; None: that of the settings.
        values: the shard, stepped in place.
        segments: (parameter group, elements) of consecutive parts of the shard.
        n_push: number of steps whose gradients are summed; the weights decay once for all of them.

    Returns:
        An optimizer whose groups carry their `number`: a shard need not hold a part of every group.
    """
    groups: list[dict[str, Any]] = [{"params": [], "number": number} for number in range(len(weight_decays))]
    start = 0
    for group, elements in segments:
        groups[group]["params"].append(torch.nn.Parameter(values[start : start + elements]))
        start += elements
    for group, decay in zip(groups, weight_decays, strict=True):
        own = settings.get("weight_decay") if decay is None else decay
        if own:
            group["weight_decay"] = own * n_push
        elif decay is not None:
            group["weight_decay"] = decay
    optimizer: torch.optim.Optimizer = target([group for group in groups if group["params"]], **settings)
    return optimizer
