"""Memory that a device gives up beside what a step's tensors take. No torch."""

from ..config.schema import Config
from ..hardware.topology import device_kind

_CONTEXT = 1.6 * 2**30
"""Bytes that a process takes of a GPU before its first tensor, with the libraries' code and their workspaces.

From benchmarks/planner/published/memory.csv: resnet50 of batch 8 and 16 on an A100, in use minus counted 1.58 GiB.
"""
_POOL = 0.2
"""Part of the tensors' bytes that PyTorch's allocator holds in addition: blocks of its pool that do not fit what is
asked for. Same source: resnet50 of batch 128 to 512, 0.20 on an A100, 0.11 on an H100."""


def reserve(config: Config, tensors: float) -> float:
    """Bytes of the driver's context and of the allocator's pool on a GPU; nothing on a CPU, where pages are returned.

    Args:
        tensors: bytes at a step's peak.
    """
    return 0.0 if device_kind(config.topology) == "cpu" else _CONTEXT + _POOL * tensors
