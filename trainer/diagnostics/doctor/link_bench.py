"""Bandwidth and latency between two workers, one direction at a time."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from .pairing import all_rounds
from .process_group import DoctorGroup
from .results import LinkFigures

SIZES = {"cpu": (8, 1 << 16, 1 << 20, 1 << 24), "cuda": (8, 1 << 16, 1 << 20, 1 << 24, 1 << 28)}
"""Bytes of a message."""
LONGEST_S = 2.5
"""Seconds; a message expected to take longer is not sent, as the previous size is accurate enough."""
_SECONDS_EACH = 0.2
_MOST = 100
_LEAST = 3
"""Repetitions of a message of at most _SHORT bytes, whose first may have waited for a busy machine: far longer than it
takes."""
_SHORT = 1 << 20


def measure_links(group: DoctorGroup) -> list[LinkFigures]:
    """Figures of the links on which this worker sends."""
    found: list[LinkFigures] = []
    if group.count == 1:
        return found
    for pairs in all_rounds(group.nodes):
        group.wait_for_all()
        for one, other in pairs:
            for source, target in ((one, other), (other, one)):
                if group.rank == source:
                    found.append(_measure_as_sender(group, target))
                elif group.rank == target:
                    _answer_as_receiver(group, source)
    return found


def _measure_as_sender(group: DoctorGroup, target: int) -> LinkFigures:
    """Sender: for each size, announce the number of messages; each is answered by one byte."""
    seconds: dict[int, float] = {}
    for size in SIZES[group.device.type]:
        is_affordable = expected_s(seconds, size) <= LONGEST_S
        _send_number(group, target, int(is_affordable))
        if not is_affordable:
            break
        message = torch.zeros(size, dtype=torch.uint8, device=group.device)
        answer = torch.zeros(1, dtype=torch.uint8, device=group.device)

        def once(message: torch.Tensor = message, answer: torch.Tensor = answer) -> None:
            dist.send(message, target)
            dist.recv(answer, target)
            group.finish_work()

        first = _time_calls(once)
        repeats = min(_MOST, max(_LEAST if size <= _SHORT else 0, int(_SECONDS_EACH / first)))
        _send_number(group, target, repeats)
        # a long message of more than 0.2 s is accurate by itself
        seconds[size] = statistics.median([_time_calls(once) for _ in range(repeats)] or [first])
    else:
        _send_number(group, target, 0)
    latency = seconds[min(seconds)] / 2
    gb_s = {
        size: size / (took - latency if took > latency else took) / 1e9
        for size, took in seconds.items()
        if size > min(seconds)
    }
    return LinkFigures(group.rank, target, group.kind(group.rank, target), latency * 1e6, gb_s)


def _answer_as_receiver(group: DoctorGroup, source: int) -> None:
    sizes = iter(SIZES[group.device.type])
    answer = torch.zeros(1, dtype=torch.uint8, device=group.device)
    while _receive_number(group, source):
        message = torch.zeros(next(sizes), dtype=torch.uint8, device=group.device)
        _answer(source, message, answer)
        for _ in range(_receive_number(group, source)):
            _answer(source, message, answer)


def _answer(source: int, message: torch.Tensor, answer: torch.Tensor) -> None:
    dist.recv(message, source)
    dist.send(answer, source)


def _send_number(group: DoctorGroup, target: int, number: int) -> None:
    dist.send(torch.tensor(number, device=group.device), target)


def _receive_number(group: DoctorGroup, source: int) -> int:
    number = torch.tensor(0, device=group.device)
    dist.recv(number, source)
    return int(number)


def _time_calls(once: Callable[[], None]) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def expected_s(seconds: dict[int, float], size: int) -> float:
    """Extrapolated seconds of a longer message from the last two sizes; 0 with fewer."""
    if len(seconds) < 2:
        return 0.0
    (one, before), (other, last) = sorted(seconds.items())[-2:]
    return last + max(0.0, last - before) / (other - one) * (size - other)
