"""Time of all-reduce and all-to-all, over all workers and inside each node."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .link_bench import LONGEST_S, expected_s
from .process_group import DoctorGroup
from .results import CollectiveFigures, CollectiveName

SIZES = {"cpu": (1 << 10, 1 << 16, 1 << 20, 1 << 24), "cuda": (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)}
"""Bytes of each worker's tensor."""
_SECONDS_EACH = 0.3
_MOST = 100
Work = Callable[[DoctorGroup, int, int, Any], Callable[[], object]]
"""Makes the call to time, from the doctor's group, bytes of each worker, number of workers, process group."""


def measure_collectives(doctor: DoctorGroup) -> list[CollectiveFigures]:
    """Figures of the collectives in which this worker has the lowest rank."""
    if doctor.count == 1:
        return []
    ranks = list(range(doctor.count))
    found = _both(doctor, "all workers", ranks, dist.group.WORLD)
    if 1 < len(doctor.nodes) < doctor.count:
        mine: Any = None
        for number, here in enumerate(doctor.nodes):
            group = dist.new_group(here)  # every worker must call it for every group
            if number == doctor.me.node:
                mine = group
        found += _both(doctor, doctor.me.place, doctor.nodes[doctor.me.node], mine)
    return found


def _both(doctor: DoctorGroup, where: str, ranks: list[int], group: Any) -> list[CollectiveFigures]:
    found: list[CollectiveFigures] = []
    kinds: dict[CollectiveName, Work] = {"all_reduce": _all_reduce, "all_to_all": _all_to_all}
    for name, work in kinds.items():
        seconds: dict[int, float] = {}
        for size in SIZES[doctor.device.type]:
            if expected_s(seconds, size) <= LONGEST_S:
                seconds[size] = _seconds(doctor, work(doctor, size, len(ranks), group))
        if doctor.rank == ranks[0]:
            found.append(CollectiveFigures(name, where, len(ranks), seconds))
    return found


def _all_reduce(doctor: DoctorGroup, size: int, workers: int, group: Any) -> Callable[[], object]:
    held = torch.zeros(size // 4, device=doctor.device)
    return lambda: dist.all_reduce(held, group=group)


def _all_to_all(doctor: DoctorGroup, size: int, workers: int, group: Any) -> Callable[[], object]:
    share = max(1, size // 4 // workers)
    held = torch.zeros(share * workers, device=doctor.device)
    received = torch.empty_like(held)
    return lambda: dist.all_to_all_single(received, held, group=group)


def _seconds(doctor: DoctorGroup, work: Callable[[], object]) -> float:
    """Seconds of one call: the shortest of three series, each timed by the slowest worker of the run.

    A long call is timed once: the overhead of a first call does not matter there.
    """
    first = _series(doctor, work, 1)
    if first > _SECONDS_EACH:
        return first
    repeats = max(1, min(_MOST, int(_SECONDS_EACH / 3 / first)))
    return min(_series(doctor, work, repeats) for _ in range(3))


def _series(doctor: DoctorGroup, work: Callable[[], object], repeats: int) -> float:
    doctor.wait_for_all()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    doctor.finish_work()
    return max(1e-9, doctor.slowest((time.perf_counter() - begin) / repeats))
