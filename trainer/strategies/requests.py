"""What a worker that runs ahead asks of others, as data.

An update rule is a generator of such requests, written once. `live` carries them out over the network, `simulation`
among virtual workers in one process: both see the same arithmetic in the same order.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Compute:
    """The gradient of the worker's next samples at its weights. Answered when `Replica.gradient` holds it, and, for a
    rule with `steps_locally`, the optimizer's own step is done."""


@dataclass(frozen=True)
class Pull:
    """The servers' parameters. Answered with a flat vector."""


@dataclass(frozen=True)
class Push:
    """Something for the servers to update their parameters with. Answered with nothing, as soon as it is sent."""

    value: Tensor
    """Flat, of all parameters; stays as it is until the next request."""
    learning_rates: tuple[float, ...] = ()
    """Of each parameter group, for servers that run an optimizer."""


@dataclass(frozen=True)
class Sum:
    """A sum over all workers. Answered with the sum, the same bits for everybody, once all have asked."""

    value: Tensor


Request = Compute | Pull | Push | Sum
Steps = Generator[Request, Any, Any]


class Rule(Protocol):
    """One worker's update rule, with what the worker remembers for it."""

    lockstep: ClassVar[bool]
    """Whether all workers take the same number of steps; else each goes by its own clock."""
    steps_locally: ClassVar[bool]
    """Whether the worker's own optimizer steps with every gradient."""

    distance: Tensor | None
    """Of the worker's weights from what it exchanged them with, relative to the norm of that; None: not known."""

    def start(self, weights: Tensor) -> None:
        """Begin at the weights that all workers share (flat)."""
        ...

    def step(self) -> Steps:
        """One local step; asks exactly once to `Compute`."""
        ...

    def settle(self) -> Steps:
        """Give away what is pending, before all workers meet."""
        ...

    def judged(self) -> Steps:
        """Returns the flat weights that are evaluated and exported."""
        ...

    def shared(self) -> Tensor | None:
        """The flat weights as the workers last shared them, where each keeps a copy; None: the servers have them."""
        ...

    def state(self) -> dict[str, Any]:
        """What the worker remembers besides its weights: plain values and tensors."""
        ...

    def load(self, state: dict[str, Any]) -> None: ...
