"""Ops of update rules: what a worker needs computed or exchanged, as data.

An update rule is a generator of ops, written once. The distributed executor runs them over the network, the simulator
among simulated workers in one process: the same arithmetic in the same order.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Compute:
    """Compute the gradient of the worker's next samples at its weights. Returns when `Replica.gradient` holds it, and,
    for a rule with `steps_locally`, the optimizer's own step is done."""


@dataclass(frozen=True)
class Pull:
    """Pull the servers' parameters. Returns a flat vector."""


@dataclass(frozen=True)
class Push:
    """Push an update to the servers. Returns nothing, as soon as it is being sent."""

    value: Tensor
    """Flat, of all parameters; must not change before the next op."""
    learning_rates: tuple[float, ...] = ()
    """Learning rate of each parameter group, for servers that run an optimizer."""


@dataclass(frozen=True)
class Sum:
    """All-reduce over all workers. Returns the sum, bitwise the same on every worker."""

    value: Tensor


Op = Compute | Pull | Push | Sum
Steps = Generator[Op, Any, Any]


class UpdateRule(Protocol):
    """One worker's update rule and its state."""

    lockstep: ClassVar[bool]
    """Whether all workers take the same number of steps; otherwise they are asynchronous."""
    steps_locally: ClassVar[bool]
    """Whether the worker's own optimizer steps with every gradient."""

    distance: Tensor | None
    """Distance of the worker's weights from those it last exchanged with, relative to the norm of those; None: not
    known."""

    def start(self, weights: Tensor) -> None:
        """Begin at the weights that all workers share (flat)."""
        ...

    def step(self) -> Steps:
        """One local step; yields `Compute` exactly once."""
        ...

    def flush(self) -> Steps:
        """Exchange what is pending, before all workers synchronize."""
        ...

    def eval_weights(self) -> Steps:
        """Returns the flat weights that are evaluated and exported."""
        ...

    def shared_weights(self) -> Tensor | None:
        """The flat weights as of the last exchange, where each worker keeps a copy; None: the servers hold them."""
        ...

    def state(self) -> dict[str, Any]:
        """State besides the weights: plain values and tensors."""
        ...

    def load(self, state: dict[str, Any]) -> None: ...
