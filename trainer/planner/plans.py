"""A plan in plain values: what a config takes of time, memory, traffic and money. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import hypot
from typing import Any

from .quantities import ComputeTimes, StepForecast

COMPUTATION = ("forward", "backward", "update")


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of the device that holds the most."""

    parts: Mapping[str, float]
    """Bytes by kind; `reserve` is what the allocator and the driver take beside them."""
    available: float | None
    """Bytes of the device; None: not known."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        return None if self.available is None else self.total <= self.available


@dataclass(frozen=True)
class TrainingCost:
    """Cost of the whole training; None if a figure for it is missing."""

    hours: float | None = None
    gpu_hours: float | None = None
    """Hours of devices, whatever they are."""
    cost: float | None = None
    kwh: float | None = None


@dataclass(frozen=True)
class TrainingPlan:
    """The forecast of one config."""

    words: tuple[str, ...]
    """Overrides that a sweep varies; empty for a plan alone."""
    strategy: str
    nodes: int
    devices_per_node: int
    batch_size: int
    step: StepForecast
    compute: ComputeTimes
    efficiency: float
    """Samples a second, by those of as many devices that train alone and do not communicate."""
    sent: float
    """Bytes that a worker sends in a step, the mean over all."""
    sent_between_nodes: float
    memory: MemoryNeed
    epochs: float | None
    steps: int | None
    total: TrainingCost
    changes: Mapping[str, float] = field(default_factory=dict)
    """Relative change of a step's time by a change of the hardware."""
    largest_batch: int | None = None
    known_from: Mapping[str, str] = field(default_factory=dict)
    """Sources of the figures, by what they are of."""

    @property
    def workers(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.step.mean

    @property
    def bound_by(self) -> tuple[tuple[str, float], ...]:
        """What a step's time goes to, the largest first; computation as one."""
        computed = sum(share for what, share in self.step.bound_by if what in COMPUTATION)
        others = [(what, share) for what, share in self.step.bound_by if what not in COMPUTATION]
        return tuple(sorted([("computation", computed), *others], key=lambda pair: -pair[1]))

    @property
    def placed(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"

    def as_data(self) -> dict[str, Any]:
        """The plan as JSON values; seconds and bytes."""
        derived = {"workers": self.workers, "samples_per_second": self.samples_per_second}
        memory = {**asdict(self.memory), "total": self.memory.total, "fits": self.memory.fits}
        return {**asdict(self), **derived, "memory": memory}


def equal_best(plans: list[TrainingPlan], communication_width: float) -> list[TrainingPlan]:
    """The fastest plan, and all down to the last whose distance from it is less than what is not known of the
    communication of both.

    What is not known of the device is the same for all, and changes no order.

    Args:
        communication_width: standard deviation of the logarithm of a time of communication.
    """
    ranked = sorted(plans, key=lambda plan: -plan.samples_per_second)
    last = max(number for number, plan in enumerate(ranked) if _equal(ranked[0], plan, communication_width))
    return ranked[: last + 1]


def _equal(best: TrainingPlan, plan: TrainingPlan, width: float) -> bool:
    unknown = 1.2816 * width * hypot(best.step.sent / best.step.mean, plan.step.sent / plan.step.mean)
    return best.samples_per_second / plan.samples_per_second <= 1 + unknown


def summarize(found: TrainingPlan) -> Mapping[str, Any]:
    """What a run's summary keeps of its plan."""
    return {
        "step_ms": 1e3 * found.step.mean, "low_ms": 1e3 * found.step.low, "high_ms": 1e3 * found.step.high,
        "exposed_ms": 1e3 * found.step.exposed, "bytes_a_step": found.sent, "memory_bytes": found.memory.total,
        "known_from": dict(found.known_from),
    }  # fmt: skip
