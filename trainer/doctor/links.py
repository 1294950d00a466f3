"""Bandwidth and latency between two workers, one direction at a time."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from .figures import Link
from .rounds import all_rounds
from .team import Team

SIZES = {"cpu": (8, 1 << 16, 1 << 20, 1 << 24), "cuda": (8, 1 << 16, 1 << 20, 1 << 24, 1 << 28)}
"""Bytes of a message."""
LONGEST_S = 2.5
"""A message that would take longer is not sent: the one before it has told enough."""
_SECONDS_EACH = 0.2
_MOST = 100


def measured_links(team: Team) -> list[Link]:
    """All links that this worker sends on."""
    found: list[Link] = []
    if team.count == 1:
        return found
    for pairs in all_rounds(team.nodes):
        team.meet()
        for one, other in pairs:
            for source, target in ((one, other), (other, one)):
                if team.rank == source:
                    found.append(_sent(team, target))
                elif team.rank == target:
                    _received(team, source)
    return found


def _sent(team: Team, target: int) -> Link:
    """The sender's part: for each size it says how many messages come; each is answered by one byte."""
    seconds: dict[int, float] = {}
    for size in SIZES[team.device.type]:
        goes_on = expected_s(seconds, size) <= LONGEST_S
        _say(team, target, int(goes_on))
        if not goes_on:
            break
        message = torch.zeros(size, dtype=torch.uint8, device=team.device)
        answer = torch.zeros(1, dtype=torch.uint8, device=team.device)

        def once(message: torch.Tensor = message, answer: torch.Tensor = answer) -> None:
            dist.send(message, target)
            dist.recv(answer, target)
            team.finish_work()

        first = _timed(once)
        repeats = min(_MOST, int(_SECONDS_EACH / first))
        _say(team, target, repeats)
        # one that takes so long needs no other to be exact
        seconds[size] = statistics.median([_timed(once) for _ in range(repeats)] or [first])
    else:
        _say(team, target, 0)
    latency = seconds[min(seconds)] / 2
    gb_s = {size: size / max(took - latency, 1e-9) / 1e9 for size, took in seconds.items() if size > min(seconds)}
    return Link(team.rank, target, team.kind(team.rank, target), latency * 1e6, gb_s)


def _received(team: Team, source: int) -> None:
    sizes = iter(SIZES[team.device.type])
    answer = torch.zeros(1, dtype=torch.uint8, device=team.device)
    while _heard(team, source):
        message = torch.zeros(next(sizes), dtype=torch.uint8, device=team.device)
        _answer(source, message, answer)
        for _ in range(_heard(team, source)):
            _answer(source, message, answer)


def _answer(source: int, message: torch.Tensor, answer: torch.Tensor) -> None:
    dist.recv(message, source)
    dist.send(answer, source)


def _say(team: Team, target: int, number: int) -> None:
    dist.send(torch.tensor(number, device=team.device), target)


def _heard(team: Team, source: int) -> int:
    number = torch.tensor(0, device=team.device)
    dist.recv(number, source)
    return int(number)


def _timed(once: Callable[[], None]) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def expected_s(seconds: dict[int, float], size: int) -> float:
    """How long a longer message should take, by the two that were sent last; 0 where that is not known yet."""
    if len(seconds) < 2:
        return 0.0
    (one, before), (other, last) = sorted(seconds.items())[-2:]
    return last + max(0.0, last - before) / (other - one) * (size - other)
