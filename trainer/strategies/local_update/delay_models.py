"""Delay models of a simulation: computation of simulated workers, and transfers."""

import math
from dataclasses import dataclass

from ...base.rng import mix
from ..execution import Execution

KINDS = ("constant", "exponential", "straggler")


@dataclass(frozen=True)
class DelayModel:
    """Seconds of simulated time, a pure function of worker, epoch and ticket.

    Args:
        kind: constant; exponential (independent draws with this mean); straggler (constant, and the last worker takes
            `slower` times as long).
        mean_s: of a gradient.
        slower: factor of the straggler.
        bytes_a_second: of the one link that all pushes and pulls share, and of each worker's own link in an all-reduce;
            None: transfers take no time.
    """

    kind: str
    mean_s: float
    slower: float
    workers: int
    seed: int
    bytes_a_second: float | None = None

    @classmethod
    def of(cls, execution: Execution, workers: int, seed: int) -> "DelayModel":
        """The delay model of a strategy's options."""
        rate = None if execution.link_mbit_s is None else execution.link_mbit_s * 1e6 / 8
        return cls(execution.delay, execution.delay_ms / 1e3, execution.slower, workers, seed, rate)

    def compute(self, worker: int, epoch: int, ticket: int) -> float:
        """Seconds of one gradient."""
        if self.kind == "exponential":
            uniform = (mix(self.seed, worker, epoch, ticket) + 1) / 2.0**63
            return -self.mean_s * math.log(min(1.0, uniform))
        slow = self.kind == "straggler" and worker == self.workers - 1
        return self.mean_s * (self.slower if slow else 1.0)

    def transfer(self, sent: float) -> float:
        """Seconds of `sent` bytes over one link."""
        return 0.0 if self.bytes_a_second is None else sent / self.bytes_a_second
