"""Quantities that the parts of the planner pass on: the work of a step, its times on a device, and its forecast."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Work of a device."""

    flop: float = 0.0
    """Arithmetic operations; a multiply-add is two."""
    bytes: float = 0.0
    """Read from and written to the device's memory."""
    kernels: int = 0
    """Operations that the host launches."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flop + other.flop, self.bytes + other.bytes, self.kernels + other.kernels)


@dataclass(frozen=True)
class LayerWork:
    """Work of one layer: a module without children that computes, or what its parent computes between two of them."""

    name: str
    forward: Cost
    backward: Cost
    gradient_elements: int = 0
    """Elements of the parameters whose gradients exist once its backward is done."""


@dataclass(frozen=True)
class StepWork:
    """Work of one optimizer step on one device."""

    batch: int
    """Samples of this device."""
    layers: tuple[LayerWork, ...]
    """Layers in the order of the forward; backward goes through them from the last to the first."""
    update: Cost

    @property
    def parameters(self) -> int:
        """Elements that are trained."""
        return sum(layer.gradient_elements for layer in self.layers)


@dataclass(frozen=True)
class PeakMemory:
    """Bytes at the moment of a step at which a device holds the most."""

    parameters: float
    """Buffers included."""
    gradients: float
    optimizer: float
    activations: float
    """Saved for backward, the batch included."""
    temporary: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.temporary


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds of a step's computation on one device, without communication."""

    forward: float
    backward: float
    update: float
    ready: tuple[tuple[int, float], ...]
    """When gradients exist: (elements so far, seconds since backward began), increasing in both; the last pair has all
    elements and the time of the whole backward."""
    source: str = "prior"
    """Source of the figure: `measured` (a step of this config), `other device`, or `prior` (FLOP and peak alone)."""

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class StepForecast:
    """Seconds of a step with its communication: the mean over a period of the strategy's exchanges."""

    mean: float
    worst: float
    """The longest step of the period: the one that exchanges."""
    exposed: float
    """Part of the mean in which computation waits for communication."""
    low: float
    """Ends of the interval that holds the measured mean in 80 % of cases."""
    high: float
    bound_by: tuple[tuple[str, float], ...] = ()
    """What the time goes to, as (name, share of the mean), the largest first."""
    sent: float = 0.0
    """Part of the mean in which something is sent, hidden or not."""
