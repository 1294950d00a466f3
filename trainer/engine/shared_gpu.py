"""Several workers on one GPU, for tests of strategies on machines with fewer GPUs than workers."""

import os
from typing import Any

import torch
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from typing_extensions import override


class SharedCUDA(CUDAAccelerator):
    """CUDA, whose worker r of a node computes on GPU r % count."""

    @staticmethod
    @override
    def parse_devices(devices: Any) -> list[int]:
        return list(range(devices)) if isinstance(devices, int) else list(devices)

    @staticmethod
    @override
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cuda", index % torch.cuda.device_count()) for index in devices]


def separate_hosts_for_nccl() -> None:
    """Let NCCL take each worker for a host of its own: it refuses two ranks of one host on one GPU."""
    os.environ.setdefault("NCCL_HOSTID", f"leyden-{os.environ.get('RANK', '0')}")
