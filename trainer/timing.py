"""Where the time of each step went. The parts sum to the whole: `other` is what no part claims."""

from dataclasses import dataclass


@dataclass
class StepTimes:
    """Seconds since the training (or its resumption) began, inside steps."""

    data: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    total: float = 0.0
    steps: int = 0
    samples: int = 0
    sent: float = 0.0
    """Bytes that this worker has sent."""
    sent_between_nodes: float = 0.0
    """What of that left the node."""

    def summary(self) -> dict[str, float]:
        other = self.total - self.data - self.compute - self.communication
        return {
            "data": self.data,
            "compute": self.compute,
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
        values["samples_per_second"] = (self.samples - before.samples) / (self.total - before.total)
        return values

    def communication_since(self, before: "StepTimes") -> dict[str, float]:
        """This worker's whole since an earlier copy, under TensorBoard's names; `steps` is what to divide it by."""
        return {
            "comm/bytes": self.sent - before.sent,
            "comm/inter_node_bytes": self.sent_between_nodes - before.sent_between_nodes,
            "comm/exposed_ms": 1e3 * (self.communication - before.communication),
            "steps": self.steps - before.steps,
        }
