"""Speed of one device: matrix products and memory copies."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .process_group import DoctorGroup
from .results import DeviceFigures

_SECONDS_EACH = 0.4
_AT_LEAST = 3
_SIDE = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices, large enough to make the launch of a product negligible."""
_COPIED = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Bytes of the copy, many times a cache's size."""
_PRECISIONS = {
    "cpu": {"fp32": torch.float32},
    "cuda": {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16},
}


def device_figures(group: DoctorGroup) -> DeviceFigures:
    """Measure this worker's device, while all others measure theirs."""
    kind, rates = group.device.type, {}
    for name, dtype in _PRECISIONS[kind].items():
        group.wait_for_all()
        rates[name] = _product_gflop_s(group, dtype, _SIDE[kind], tf32=name == "tf32")
    group.wait_for_all()
    return DeviceFigures(rates, _copy_gb_s(group, _COPIED[kind]))


def _product_gflop_s(group: DoctorGroup, dtype: torch.dtype, side: int, tf32: bool) -> float:
    one, other = (torch.randn(side, side, device=group.device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    with _float32_as(tf32):
        return 2 * side**3 / _best_seconds(group, lambda: torch.mm(one, other, out=out)) / 1e9


def _copy_gb_s(group: DoctorGroup, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=group.device)
    target = torch.empty_like(source)
    return 2 * size / _best_seconds(group, lambda: target.copy_(source)) / 1e9


@contextmanager
def _float32_as(tf32: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _best_seconds(group: DoctorGroup, work: Callable[[], object]) -> float:
    """The shortest of several calls: the device's speed without disturbance by other processes."""
    work()
    group.finish_work()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS_EACH
    while len(times) < _AT_LEAST or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        group.finish_work()
        times.append(time.perf_counter() - begin)
    return min(times)
