"""Update rule of local SGD and DiLoCo: local steps, averaged every h steps."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..local_update.flat_parameters import Replica
from ..local_update.ops import Compute, Steps, Sum


class LocalAveraging:
    """Every h local steps an outer step from the last common weights w towards the workers' mean m = 1/W sum_i x_i:

    d = w - m;  b <- mu b + d;  w <- w - nu (d + mu b);  x_i <- w.

    With nu = 1 and mu = 0, w = m: local SGD (Stich 2019, ICLR; McMahan et al. 2017). With Nesterov's momentum mu > 0:
    DiLoCo (Douillard et al. 2023, arXiv 2311.08105, nu = 0.7, mu = 0.9).

    With `adapt_every` = T > 0, h follows AdaComm (Wang and Joshi 2019, MLSys, arXiv 1810.08313): after every T steps
    h <- ceil(sqrt(lr_0 / lr * F / F_0) h_0), where F is the mean training loss of the last T steps and F_0 that of the
    first T; where that is not less than before, h <- ceil(h / 2). h never exceeds h_0.
    """

    lockstep: ClassVar[bool] = True
    steps_locally: ClassVar[bool] = True

    def __init__(
        self, replica: Replica, workers: int, h: int, outer_lr: float = 1.0, outer_momentum: float = 0.0,
        adapt_every: int = 0,
    ):  # fmt: skip
        self.replica = replica
        self.workers = workers
        self.first_h = self.h = h
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        self.adapt_every = adapt_every
        self.steps_since_average = 0
        """Local steps since the workers last had equal weights."""
        self.distance: Tensor | None = None
        self.anchor = replica.values.clone()
        self.momentum = torch.zeros_like(self.anchor) if outer_momentum else None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.anchor.device)
        """Sum of the losses recorded in this interval."""
        self._recorded = 0
        self.first: list[float] = []
        """Loss and learning rate of the first interval."""

    def start(self, weights: Tensor) -> None:
        self.replica.values.copy_(weights)
        self.anchor = weights.clone()

    def record_loss(self, loss: Tensor) -> None:
        """Record the training loss of a step, from which h is adapted; the host does not wait for it."""
        self._loss_sum += loss
        self._recorded += 1

    def step(self) -> Steps:
        yield Compute()
        self.steps_since_average += 1
        if self.steps_since_average >= self.h:
            yield from self._average()
            self.steps_since_average = 0

    def _average(self) -> Steps:
        mean = (yield Sum(self.replica.values.clone())) / self.workers
        self.distance = (self.replica.values - mean).norm() / mean.norm()
        if self.outer_lr == 1.0 and self.momentum is None:
            self.anchor = mean
        else:
            moved = self.anchor - mean
            if self.momentum is not None:
                self.momentum.mul_(self.outer_momentum).add_(moved)
                moved = moved + self.outer_momentum * self.momentum
            self.anchor = self.anchor - self.outer_lr * moved
        self.replica.values.copy_(self.anchor)
        if self.adapt_every and self._recorded >= self.adapt_every:
            yield from self._adapt()

    def _adapt(self) -> Steps:
        own = torch.stack([self._loss_sum, torch.full_like(self._loss_sum, self._recorded)])
        total, count = (yield Sum(own)).tolist()
        loss, rate = total / count, self.replica.learning_rates()[0]
        self._loss_sum.zero_()
        self._recorded = 0
        if not self.first:
            self.first = [loss, rate]
            return
        first_loss, first_rate = self.first
        factor = math.sqrt(max(0.0, first_rate / rate * loss / first_loss)) if rate and first_loss else 1.0
        wanted = math.ceil(factor * self.first_h)
        self.h = max(1, min(self.first_h, wanted if wanted < self.h else math.ceil(self.h / 2)))

    def flush(self) -> Steps:
        yield from ()

    def eval_weights(self) -> Steps:
        if self.steps_since_average == 0:
            return self.anchor
        return (yield Sum(self.replica.values.clone())) / self.workers

    def shared_weights(self) -> Tensor:
        return self.anchor

    def state(self) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "h": self.h,
            "since": self.steps_since_average,
            "anchor": self.anchor,
            "losses": [float(self._loss_sum), float(self._recorded)],
        }
        if self.momentum is not None:
            kept["momentum"] = self.momentum
        return {**kept, "first": self.first}

    def load(self, state: dict[str, Any]) -> None:
        self.h, self.steps_since_average = state["h"], state["since"]
        self.anchor.copy_(state["anchor"])
        loss_sum, recorded = state["losses"]
        self._loss_sum.fill_(loss_sum)
        self._recorded, self.first = int(recorded), list(state["first"])
        if self.momentum is not None and "momentum" in state:
            self.momentum.copy_(state["momentum"])
