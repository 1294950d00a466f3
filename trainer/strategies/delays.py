"""How long a virtual worker takes: the delay models of a simulation, and the link to its servers."""

import math
from dataclasses import dataclass

from ..random_state import mix

KINDS = ("constant", "exponential", "straggler")


@dataclass(frozen=True)
class Delays:
    """Seconds of virtual time, a pure function of the worker and what it trains on.

    Args:
        kind: constant; exponential (independent draws with this mean); straggler (constant, and the last worker takes
            `slower` times as long).
        mean_s: a gradient takes so long.
        slower: of the straggler.
        bytes_a_second: of the one link that all pushes and pulls share, and of each worker's own link in a sum; None:
            transfers take no time.
    """

    kind: str
    mean_s: float
    slower: float
    workers: int
    seed: int
    bytes_a_second: float | None = None

    def compute(self, worker: int, epoch: int, ticket: int) -> float:
        """A gradient of a worker."""
        if self.kind == "exponential":
            uniform = (mix(self.seed, worker, epoch, ticket) + 1) / 2.0**63
            return -self.mean_s * math.log(min(1.0, uniform))
        slow = self.kind == "straggler" and worker == self.workers - 1
        return self.mean_s * (self.slower if slow else 1.0)

    def transfer(self, sent: float) -> float:
        """Bytes over one link."""
        return 0.0 if self.bytes_a_second is None else sent / self.bytes_a_second
