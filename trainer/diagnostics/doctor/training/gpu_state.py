"""State of a node's GPUs as the driver tells it: versions, clocks, throttling, memory errors, peers, sockets."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .checks import Check

FIELDS = (
    "index", "pci.bus_id", "driver_version", "clocks.current.sm", "clocks.max.sm", "clocks_throttle_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
"""Columns of nvidia-smi --query-gpu."""
VERSIONS = "versions"
_HARMLESS = 0x1 | 0x2 | 0x4
"""Idle, applications' clocks, and the power cap that the owner has set."""
_PCI = Path("/sys/bus/pci/devices")


def gpu_checks() -> Iterator[Check]:
    """Checks of this node's GPUs; nothing without CUDA."""
    import torch
    from torch.cuda import nccl

    if not torch.cuda.is_available():
        return
    begin = time.monotonic()
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    lines = _query_gpus()
    yield Check(
        VERSIONS, None, None, None, time.monotonic() - begin, f"{versions}, NCCL {nccl.version()}{_drivers(lines)}"
    )
    yield from state_checks(lines)
    count = torch.cuda.device_count()
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    if pairs:
        without = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
        text = f"no peer access: {without}" if without else ""
        yield Check("peer access", float(len(without)), None, None, 0.0, text)


def state_checks(lines: Sequence[Sequence[str]]) -> Iterator[Check]:
    """Checks of the rows of nvidia-smi."""
    for index, bus, _, clock, maximum, reasons, errors in lines:
        throttled = int(reasons, 16) & ~_HARMLESS if reasons.startswith("0x") else 0
        text = f"{clock} of {maximum} MHz, socket {_socket(bus)}"
        yield Check(f"GPU {index}: throttling", float(throttled), 0.0, throttled == 0, 0.0, text)
        if errors.isdigit():
            yield Check(f"GPU {index}: uncorrected memory errors", float(errors), 0.0, errors == "0", 0.0)


def rows(text: str) -> list[list[str]]:
    """Rows of nvidia-smi's CSV without header and units."""
    return [
        [cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") + 1 == len(FIELDS)
    ]


def _query_gpus() -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return rows(done.stdout) if done.returncode == 0 else []


def _drivers(lines: Sequence[Sequence[str]]) -> str:
    found = sorted({line[2] for line in lines})
    return f", driver {', '.join(found)}" if found else ""


def _socket(bus: str) -> str:
    """NUMA node of a PCI device; nvidia-smi writes the domain with eight digits, the kernel with four."""
    path = _PCI / bus.lower().removeprefix("0000") / "numa_node"
    return path.read_text().strip() if path.exists() else "unknown"
