"""Arithmetic over the hardware there is. No torch: a config is judged before anything is imported."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Literal

from .config import Topology

CPU_WORKERS_PER_CORE = 8


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_count() -> int:
    """NVIDIA GPUs that this machine's torch could use, counted without importing it."""
    present = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in Path("/dev").glob("nvidia*"))
    if not present or not _torch_has_cuda():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name.strip() for name in visible.split(",")]
    # CUDA ignores every name from the first invalid one on.
    usable = named.index("-1") if "-1" in named else len(named)
    return min(present, len([name for name in named[:usable] if name]))


def device_kind(topology: Topology) -> Literal["cpu", "cuda"]:
    """What the workers compute on."""
    if topology.device.kind == "auto":
        return "cuda" if gpu_count() else "cpu"
    return topology.device.kind


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return not version.exists() or not re.search(r"^cuda.*=\s*None\s*$", version.read_text(), re.MULTILINE)
