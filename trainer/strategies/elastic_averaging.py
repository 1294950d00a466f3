"""The update rules of EASGD and EAMSGD (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651): workers tied to a center."""

from typing import Any, ClassVar

from torch import Tensor

from .flat_parameters import Replica
from .requests import Compute, Pull, Push, Steps, Sum


class _Elastic:
    """A worker that exchanges alpha (x - c) every `tau` local steps."""

    steps_locally: ClassVar[bool] = True

    def __init__(self, replica: Replica, alpha: float, tau: int):
        self.replica = replica
        self.alpha = alpha
        self.tau = tau
        self.steps = 0
        self.distance: Tensor | None = None

    def start(self, weights: Tensor) -> None:
        self.replica.values.copy_(weights)

    def settle(self) -> Steps:
        yield from ()

    def shared(self) -> Tensor | None:
        return None

    def _difference(self, center: Tensor) -> Tensor:
        """alpha (x - c)."""
        difference = self.replica.position() - center
        self.distance = difference.norm() / center.norm()
        return difference.mul_(self.alpha)


class ElasticByAllReduce(_Elastic):
    """Synchronous EASGD: every `tau` local steps, d_i = alpha (x_i - c);  x_i <- x_i - d_i;  c <- c + sum_i d_i.

    Every worker keeps a copy of the center; one all-reduce of the differences moves all copies alike.
    """

    lockstep: ClassVar[bool] = True

    def __init__(self, replica: Replica, alpha: float, tau: int):
        super().__init__(replica, alpha, tau)
        self.center = replica.values.clone()

    def start(self, weights: Tensor) -> None:
        super().start(weights)
        self.center = weights.clone()

    def step(self) -> Steps:
        yield Compute()
        self.steps += 1
        if self.steps % self.tau == 0:
            difference = self._difference(self.center)
            self.replica.values.sub_(difference)
            self.center += yield Sum(difference)

    def judged(self) -> Steps:
        yield from ()
        return self.center

    def shared(self) -> Tensor:
        return self.center

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "center": self.center}

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.center.copy_(state["center"])


class ElasticByServer(_Elastic):
    """Asynchronous EASGD, each worker by its own clock: in every `tau`-th local step pull c;  e = alpha (x - c);
    push e (the server: c <- c + e);  x <- x - lr g(x);  x <- x - e.

    The gradient is taken at the weights before the elastic term, so that the push travels while it is computed (the
    order of the authors' code, optim-eamsgd in mpiT).
    """

    lockstep: ClassVar[bool] = False

    def step(self) -> Steps:
        difference = None
        if self.steps % self.tau == 0:
            difference = self._difference((yield Pull()))
            yield Push(difference)
        yield Compute()
        self.steps += 1
        if difference is not None:
            self.replica.values.sub_(difference)

    def judged(self) -> Steps:
        return (yield Pull())

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
