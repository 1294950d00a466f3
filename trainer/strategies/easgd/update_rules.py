"""Update rules of EASGD and EAMSGD (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651)."""

from typing import Any, ClassVar

from torch import Tensor

from ..local_update.flat_parameters import Replica
from ..local_update.ops import Compute, Pull, Push, Steps, Sum


class _Elastic:
    """A worker that exchanges alpha (x - c) every `tau` local steps.

    Args:
        before: the difference x - c is taken before the local step of an exchange, not after it.
    """

    steps_locally: ClassVar[bool] = True

    def __init__(self, replica: Replica, alpha: float, tau: int, before: bool):
        self.replica = replica
        self.alpha = alpha
        self.tau = tau
        self.before = before
        self.steps = 0
        self.distance: Tensor | None = None

    def start(self, weights: Tensor) -> None:
        self.replica.values.copy_(weights)

    def flush(self) -> Steps:
        yield from ()

    def shared_weights(self) -> Tensor | None:
        return None

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "rates": self.replica.last_rates}

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.replica.last_rates = state.get("rates")  # earlier checkpoints do not have them

    def _step(self) -> None:
        self.steps += 1
        self.replica.last_rates = list(self.replica.learning_rates())

    def _due(self, before: bool) -> bool:
        """Whether an exchange takes its difference now, before or after the local step."""
        return before is self.before and self.steps % self.tau == 0

    def _difference(self, center: Tensor) -> Tensor:
        """alpha (x - c)."""
        difference = self.replica.position() - center
        self.distance = difference.norm() / center.norm()
        return difference.mul_(self.alpha)


class ElasticByAllReduce(_Elastic):
    """Synchronous EASGD: every `tau` local steps, d_i = alpha (x_i - c);  x_i <- x_i - d_i;  c <- c + sum_i d_i.

    Every worker keeps a copy of the center; one all-reduce of the differences moves all copies alike.

    With `before` the difference is that at x_t, as in section 3 of the paper: x_i <- x_i - lr g(x_i) - d_i, in
    steps t = 0, tau, 2 tau, ... Without it, the difference is that after the local step, in steps tau - 1,
    2 tau - 1, ... (AllReduceEA of torch-distlearn).
    """

    lockstep: ClassVar[bool] = True

    def __init__(self, replica: Replica, alpha: float, tau: int, before: bool):
        super().__init__(replica, alpha, tau, before)
        self.center = replica.values.clone()

    def start(self, weights: Tensor) -> None:
        super().start(weights)
        self.center = weights.clone()

    def step(self) -> Steps:
        difference = self._difference(self.center) if self._due(before=True) else None
        yield Compute()
        self._step()
        if self._due(before=False):
            difference = self._difference(self.center)
        if difference is not None:
            self.replica.values.sub_(difference)
            self.center += yield Sum(difference)

    def eval_weights(self) -> Steps:
        yield from ()
        return self.center

    def shared_weights(self) -> Tensor:
        return self.center

    def state(self) -> dict[str, Any]:
        return {**super().state(), "center": self.center}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.center.copy_(state["center"])


class ElasticByServer(_Elastic):
    """Asynchronous EASGD: every `tau` local steps of a worker, pull c;  e = alpha (x - c);  push e (the server:
    c <- c + e);  x <- x - e.

    With `before` (Algorithm 1 of the paper, and optim-eamsgd in mpiT, the authors' code) that is x_t, and the gradient
    is taken there as well: x <- x - lr g(x) - e, in steps t = 0, tau, 2 tau, ...; the push travels while the gradient
    is computed. Without it, the exchange follows the local step, in steps tau - 1, 2 tau - 1, ...
    """

    lockstep: ClassVar[bool] = False

    def step(self) -> Steps:
        difference = None
        if self._due(before=True):
            difference = self._difference((yield Pull()))
            yield Push(difference)
        yield Compute()
        self._step()
        if self._due(before=False):
            difference = self._difference((yield Pull()))
            yield Push(difference)
        if difference is not None:
            self.replica.values.sub_(difference)

    def eval_weights(self) -> Steps:
        return (yield Pull())
