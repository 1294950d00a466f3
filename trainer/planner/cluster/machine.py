"""Times of a step's computation on a device: measured, scaled from another device, or a roofline of its layers.

The roofline (Williams, Waterman and Patterson 2009, 10.1145/1498765.1498785) takes for a layer the longer of its
arithmetic and its memory traffic, at the rates that networks reach, and at least the time in which the host launches
its operations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ...hardware.schema import Device
from ..quantities import ComputeTimes, Cost, StepWork
from .links import MissingFigure
from .priors import Format, Priors

_OTHERS: dict[Format, tuple[Format, ...]] = {
    "fp32": (), "tf32": ("fp32",), "fp16": ("bf16", "tf32", "fp32"), "bf16": ("fp16", "tf32", "fp32"),
}  # fmt: skip
"""Formats whose peak stands for one that is not known: those that are no faster."""


@dataclass(frozen=True)
class MeasuredStep:
    """Measured seconds of a step of this model, batch and precision."""

    forward: float
    backward: float
    update: float
    memory_gb_s: float | None = None
    """Nominal bandwidth of the device that it was measured on; None: the device that is planned."""


def step_times(
    work: StepWork, device: Device, precision: Format, priors: Priors, measured: MeasuredStep | None = None
) -> ComputeTimes:
    """The computation of a step: a measured one first, one of another device second, FLOP last.

    Args:
        precision: format of the arithmetic.
        measured: of this device, or of another one, whose times are scaled by memory bandwidth.

    Raises:
        MissingFigure: the topology says neither the device's peak nor its bandwidth.
    """
    if measured is not None:
        scale, source = 1.0, "measured"
        if measured.memory_gb_s is not None:
            scale, source = measured.memory_gb_s / _bandwidth(device), "other device"
        parts = _profile(work, device, precision, priors)
        return _with(parts, measured.forward * scale, measured.backward * scale, measured.update * scale, source)
    rates = Rates.of(device, precision, priors)
    parts = [(layer.gradient_elements, rates.seconds(layer.backward)) for layer in reversed(work.layers)]
    forward = sum(rates.seconds(layer.forward) for layer in work.layers)
    return _with(parts, forward, sum(seconds for _, seconds in parts), rates.seconds(work.update), "prior")


def _with(
    parts: list[tuple[int, float]], forward: float, backward: float, update: float, source: str
) -> ComputeTimes:  # fmt: skip
    """The moments at which gradients exist, stretched to the time of the whole backward."""
    whole = sum(seconds for _, seconds in parts)
    scale = backward / whole if whole else 0.0
    return ComputeTimes(forward, backward, update, tuple(_moments(parts, scale, backward)), source)


def _moments(parts: list[tuple[int, float]], scale: float, backward: float) -> Iterator[tuple[int, float]]:
    elements, seconds = 0, 0.0
    for own, spent in parts:
        seconds += spent * scale
        elements += own
        if own and elements < sum(own for own, _ in parts):
            yield elements, seconds
    yield elements, backward


def _profile(work: StepWork, device: Device, precision: Format, priors: Priors) -> list[tuple[int, float]]:
    """Gradient elements and backward seconds by layer; where nothing is known of the device, in the ratio of FLOP."""
    try:
        rates = Rates.of(device, precision, priors)
    except MissingFigure:
        return [(layer.gradient_elements, layer.backward.flop) for layer in reversed(work.layers)]
    return [(layer.gradient_elements, rates.seconds(layer.backward)) for layer in reversed(work.layers)]


@dataclass(frozen=True)
class Rates:
    """What a device reaches."""

    flop_s: float
    bytes_s: float
    launch_s: float

    @staticmethod
    def of(device: Device, precision: Format, priors: Priors) -> "Rates":
        """Rates of a device in one format.

        Raises:
            MissingFigure: its peak or its bandwidth is not known.
        """
        flop = _peak(device, precision) * priors.compute_efficiency.value[precision] * 1e12
        launch = 0.0 if device.kind == "cpu" else priors.launch_us.value * 1e-6
        return Rates(flop, _bandwidth(device) * priors.memory_efficiency.value * 1e9, launch)

    def seconds(self, cost: Cost) -> float:
        """Seconds of one layer's operations."""
        return max(cost.flop / self.flop_s, cost.bytes / self.bytes_s, cost.kernels * self.launch_s)


def _peak(device: Device, precision: Format) -> float:
    for known in (precision, *_OTHERS[precision]):
        peak = getattr(device.peak_tflops, known)
        if peak is not None:
            return peak
    raise _missing(f"peak_tflops.{precision}")


def _bandwidth(device: Device) -> float:
    if device.memory_gb_s is None:
        raise _missing("memory_gb_s")
    return device.memory_gb_s


def _missing(key: str) -> MissingFigure:
    return MissingFigure(
        f"topology.device.{key} is not known: give it (topology.device.{key}=...), or let `leyden doctor --write` "
        "measure it"
    )
