"""How long all-reduce and all-to-all take, over all workers and inside each node."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .figures import Collective, CollectiveName
from .links import LONGEST_S, expected_s
from .team import Team

SIZES = {"cpu": (1 << 10, 1 << 16, 1 << 20, 1 << 24), "cuda": (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)}
"""Bytes that each worker holds."""
_SECONDS_EACH = 0.3
_MOST = 100
Work = Callable[[Team, int, int, Any], Callable[[], object]]
"""A call to be timed, for a team, the bytes of each worker, how many workers, and their group."""


def measured_collectives(team: Team) -> list[Collective]:
    """Those that this worker is the first of."""
    if team.count == 1:
        return []
    ranks = list(range(team.count))
    found = _both(team, "all workers", ranks, dist.group.WORLD)
    if 1 < len(team.nodes) < team.count:
        mine: Any = None
        for number, here in enumerate(team.nodes):
            group = dist.new_group(here)  # everybody must call it for every group
            if number == team.me.node:
                mine = group
        found += _both(team, team.me.place, team.nodes[team.me.node], mine)
    return found


def _both(team: Team, where: str, ranks: list[int], group: Any) -> list[Collective]:
    found: list[Collective] = []
    kinds: dict[CollectiveName, Work] = {"all_reduce": _all_reduce, "all_to_all": _all_to_all}
    for name, work in kinds.items():
        seconds: dict[int, float] = {}
        for size in SIZES[team.device.type]:
            if expected_s(seconds, size) <= LONGEST_S:
                seconds[size] = _seconds(team, work(team, size, len(ranks), group))
        if team.rank == ranks[0]:
            found.append(Collective(name, where, len(ranks), seconds))
    return found


def _all_reduce(team: Team, size: int, workers: int, group: Any) -> Callable[[], object]:
    held = torch.zeros(size // 4, device=team.device)
    return lambda: dist.all_reduce(held, group=group)


def _all_to_all(team: Team, size: int, workers: int, group: Any) -> Callable[[], object]:
    share = max(1, size // 4 // workers)
    held = torch.zeros(share * workers, device=team.device)
    received = torch.empty_like(held)
    return lambda: dist.all_to_all_single(received, held, group=group)


def _seconds(team: Team, work: Callable[[], object]) -> float:
    """Of one call, the shortest of three series; each as long as it took the slowest worker of the whole run.

    A call that is long is timed once: what the first does beside its work does not matter then.
    """
    first = _series(team, work, 1)
    if first > _SECONDS_EACH:
        return first
    repeats = max(1, min(_MOST, int(_SECONDS_EACH / 3 / first)))
    return min(_series(team, work, repeats) for _ in range(3))


def _series(team: Team, work: Callable[[], object], repeats: int) -> float:
    team.meet()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    team.finish_work()
    return max(1e-9, team.slowest((time.perf_counter() - begin) / repeats))
