"""How fast one device multiplies matrices and copies memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .figures import DeviceFigures
from .team import Team

_SECONDS_EACH = 0.4
_AT_LEAST = 3
_SIDE = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices: large enough that starting a product costs nothing beside it."""
_COPIED = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Bytes: many times what a cache holds."""
_PRECISIONS = {
    "cpu": {"fp32": torch.float32},
    "cuda": {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16},
}


def device_figures(team: Team) -> DeviceFigures:
    """Measure this worker's device; the others measure theirs at the same time."""
    kind, rates = team.device.type, {}
    for name, dtype in _PRECISIONS[kind].items():
        team.meet()
        rates[name] = _product_gflop_s(team, dtype, _SIDE[kind], tf32=name == "tf32")
    team.meet()
    return DeviceFigures(rates, _copy_gb_s(team, _COPIED[kind]))


def _product_gflop_s(team: Team, dtype: torch.dtype, side: int, tf32: bool) -> float:
    one, other = (torch.randn(side, side, device=team.device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    with _float32_as(tf32):
        return 2 * side**3 / _best_seconds(team, lambda: torch.mm(one, other, out=out)) / 1e9


def _copy_gb_s(team: Team, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=team.device)
    target = torch.empty_like(source)
    return 2 * size / _best_seconds(team, lambda: target.copy_(source)) / 1e9


@contextmanager
def _float32_as(tf32: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _best_seconds(team: Team, work: Callable[[], object]) -> float:
    """The shortest of several: what the device can do, whatever else the machine did meanwhile."""
    work()
    team.finish_work()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS_EACH
    while len(times) < _AT_LEAST or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        team.finish_work()
        times.append(time.perf_counter() - begin)
    return min(times)
