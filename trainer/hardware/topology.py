"""Arithmetic over the available hardware. No torch: configs are validated before it is imported."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from .schema import Topology

CPU_WORKERS_PER_CORE = 8
_SMI_TIMEOUT_S = 20


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


SHARE = "LEYDEN_SHARE_GPU"
"""Environment variable, for tests: with 1 the workers of a node share its GPUs, worker r on GPU r % count."""


def shares_gpus() -> bool:
    """Whether several workers may compute on one GPU."""
    return os.environ.get(SHARE) == "1"


def gpu_count() -> int:
    """NVIDIA GPUs that this machine's torch could use, counted without importing it."""
    present = _present_gpus(Path("/"))
    if not present or not _torch_has_cuda():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name.strip() for name in visible.split(",")]
    # CUDA ignores all names from the first invalid one on.
    usable = named.index("-1") if "-1" in named else len(named)
    names = [name for name in named[:usable] if name]
    # a process sees one instance of a divided GPU, however many are named
    return min(1 if any(name.startswith("MIG-") for name in names) else len(names), present)


def _present_gpus(root: Path) -> int:
    """GPUs of the machine: by their device files, in Windows' Linux (WSL2), which has one for all, by nvidia-smi."""
    dev = root / "dev"
    files = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in dev.glob("nvidia*"))
    smi = root / "usr/lib/wsl/lib/nvidia-smi"
    if files or not (dev / "dxg").exists() or not smi.exists():
        return files
    try:
        listed = subprocess.run(
            [smi, "--list-gpus"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def device_kind(topology: Topology) -> Literal["cpu", "cuda"]:
    """Device kind of the workers.

    A frozen config has cpu or cuda (`resolve_device_kind`); one frozen by an earlier version may have auto.
    """
    return _present_kind() if topology.device.kind == "auto" else topology.device.kind


def resolve_device_kind(values: Mapping[str, Any]) -> None:
    """Replace topology.device.kind=auto by this machine's kind, in plain values that may not be validated yet.

    Under Slurm and for a manifest auto stays: this machine is not the one that trains, and `checks` refuses it.
    """
    topology, strategy = values.get("topology"), values.get("strategy")
    device = topology.get("device") if isinstance(topology, dict) else None
    execution = strategy.get("execution") if isinstance(strategy, dict) else None
    simulated = isinstance(execution, dict) and bool(execution.get("simulate"))
    if not isinstance(device, dict) or device.get("kind") != "auto":
        return
    assert isinstance(topology, dict)
    pods = topology.get("kubernetes")
    elsewhere = topology.get("launcher") == "slurm" or (isinstance(pods, dict) and pods.get("image") is not None)
    if not elsewhere or simulated:
        device["kind"] = _present_kind()


def _present_kind() -> Literal["cpu", "cuda"]:
    return "cuda" if gpu_count() else "cpu"


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return not version.exists() or not re.search(r"^cuda.*=\s*None\s*$", version.read_text(), re.MULTILINE)
