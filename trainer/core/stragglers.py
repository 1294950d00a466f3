"""Straggler detection: workers that compute longer than the others, apart from waiting for them."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from lightning.fabric import Fabric

from ..base.log import log
from .step_timer import StepTimes

FACTOR = 1.5
"""Own time relative to the median, from which a worker is a straggler."""
_UNTIL = 1.25
"""Own time relative to the median, below which it is none any more."""

_COMPARED = 16
"""Most workers whose times are logged one by one."""


@dataclass(frozen=True)
class OwnTime:
    """Seconds that a worker spent in steps without waiting for the network."""

    data: float = 0.0
    compute: float = 0.0

    @property
    def total(self) -> float:
        return self.data + self.compute

    def __add__(self, other: "OwnTime") -> "OwnTime":
        return OwnTime(self.data + other.data, self.compute + other.compute)


@dataclass
class Stragglers:
    """Workers whose own time is over FACTOR times the median of all workers' for `windows` windows in a row.

    Time spent waiting for the network is left out: in lockstep all workers' steps take equally long, and a straggler
    is the one that does not wait. All workers add the same times, so that all come to the same answer.

    Args:
        window_s: least length of a window, in seconds of the slowest worker: what is slow for one step does not count.
        windows: in a row, until a worker is named.
    """

    window_s: float = 5.0
    windows: int = 2

    def __post_init__(self) -> None:
        self._sums: list[OwnTime] = []
        self._steps = 0
        self._over: dict[int, int] = {}
        """Windows in a row in which a worker was over the limit."""
        self.named: set[int] = set()
        self.found: list[dict[str, float]] = []
        """Every straggler that was named: rank, ratio to the median, step."""

    def add(self, times: Sequence[OwnTime], rank: int, steps: int, step: int) -> dict[str, float]:
        """Times of all workers in an interval of `steps` steps up to `step`. A straggler names itself in the log.

        Args:
            rank: of this worker.

        Returns:
            The slowest worker of the interval, and the own time of each of few workers, for the loggers.
        """
        self._sums = [a + b for a, b in zip(self._sums, times, strict=True)] if self._sums else list(times)
        self._steps += steps
        if max(own.total for own in self._sums) >= self.window_s:
            self._end_window(rank, step)
        ratios = _ratios(times)
        slowest = max(range(len(ratios)), key=ratios.__getitem__)
        values = {"workers/slowest_rank": float(slowest), "workers/slowest_ratio": ratios[slowest]}
        if len(times) <= _COMPARED:
            values |= {f"workers/own_ms/{number}": 1e3 * own.total / steps for number, own in enumerate(times)}
        return values

    def _end_window(self, own_rank: int, step: int) -> None:
        for rank, ratio in enumerate(_ratios(self._sums)):
            self._over[rank] = self._over.get(rank, 0) + 1 if ratio > FACTOR else 0
            if self._over[rank] == self.windows and rank not in self.named:
                self.named.add(rank)
                self.found.append({"rank": rank, "ratio": ratio, "step": step})
                if rank == own_rank:
                    self._warn(rank, ratio)
            elif rank in self.named and ratio < _UNTIL:
                self.named.discard(rank)
                if rank == own_rank:
                    log.warning("rank %d is no straggler any more: %.1f times the median", rank, ratio)
        self._sums, self._steps = [], 0

    def _warn(self, rank: int, ratio: float) -> None:
        own, ms = self._sums[rank], 1e3 / self._steps
        log.warning(
            "rank %d on %s is a straggler, the others wait for it: %.1f ms a step, %.1f times the median of %d workers "
            "(%.1f ms of it for data)",
            rank, socket.gethostname(), own.total * ms, ratio, len(self._sums), own.data * ms,
        )  # fmt: skip


def _ratios(times: Sequence[OwnTime]) -> list[float]:
    usual = median_low(own.total for own in times)
    return [own.total / usual if usual else 1.0 for own in times]


def gather_times(fabric: Fabric, now: StepTimes, before: StepTimes) -> list[OwnTime]:
    """Each worker's own time since an earlier copy of its times, by rank. Collective."""
    values = torch.zeros(fabric.world_size, 2, dtype=torch.float64, device=fabric.device)
    values[fabric.global_rank, 0] = now.data - before.data
    values[fabric.global_rank, 1] = now.compute - before.compute
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, torch.Tensor)
    return [OwnTime(data, compute) for data, compute in total.tolist()]
