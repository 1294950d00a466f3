"""Time of each step by phase, and speed of a training."""

from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple


class Lap(NamedTuple):
    """Speed over an interval of steps."""

    samples_per_second: float | None
    """Since the previous lap; None without a step."""
    seconds_left: float | None
    """Seconds to the end of the training, at the mean speed of this session."""


class Pace:
    """Speed of a training, measured by its step count.

    Args:
        step: optimizer steps done.
        batch_size: samples of a step, over all workers.
    """

    def __init__(self, step: int, batch_size: int):
        self._batch_size = batch_size
        self._first = self._last = (monotonic(), step)

    def lap(self, step: int, total_steps: int) -> Lap:
        """Speed since the previous call."""
        now = monotonic()
        (began, first_step), (before, last_step) = self._first, self._last
        self._last = (now, step)
        steps, all_steps = step - last_step, step - first_step
        return Lap(
            steps * self._batch_size / (now - before) if steps else None,
            (total_steps - step) * (now - began) / all_steps if all_steps else None,
        )


@dataclass
class StepTimes:
    """Seconds inside steps of this session, by phase; of the device where it is a GPU.

    Data, forward, backward, update and communication sum to the total: `other` is the remainder.
    """

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    """After the backward: clipping, the optimizer, the task's hooks."""
    communication: float = 0.0
    """Waits for the network, in whichever phase; they are in none of the others."""
    total: float = 0.0
    steps: int = 0
    samples: int = 0
    sent: float = 0.0
    """Bytes sent by this worker."""
    sent_between_nodes: float = 0.0
    """Part of these bytes that left the node."""

    @property
    def compute(self) -> float:
        """Forward, backward and update."""
        return self.forward + self.backward + self.update

    def summary(self) -> dict[str, float]:
        other = self.total - self.data - self.compute - self.communication
        return {
            "data": self.data,
            "forward": self.forward,
            "backward": self.backward,
            "update": self.update,
            "communication": self.communication,
            "other": other,
            "total": self.total,
        }

    def since(self, before: "StepTimes") -> dict[str, float]:
        """Mean milliseconds a step since an earlier copy, under TensorBoard's names; and samples a second."""
        steps = self.steps - before.steps
        if steps == 0 or self.total == before.total:
            return {}
        now, then = self.summary(), before.summary()
        values = {f"time/{part}_ms": 1e3 * (now[part] - then[part]) / steps for part in now}
        values["time/compute_ms"] = 1e3 * (self.compute - before.compute) / steps
        values["samples_per_second"] = (self.samples - before.samples) / (self.total - before.total)
        return values

    def communication_since(self, before: "StepTimes") -> dict[str, float]:
        """This worker's totals since an earlier copy, under TensorBoard's names, with their `steps`."""
        return {
            "comm/bytes": self.sent - before.sent,
            "comm/inter_node_bytes": self.sent_between_nodes - before.sent_between_nodes,
            "comm/exposed_ms": 1e3 * (self.communication - before.communication),
            "steps": self.steps - before.steps,
        }
