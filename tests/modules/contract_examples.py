"""A strategy of Lightning's own that knows nothing of Leyden, for tests/core/test_strategy_contract.py."""

import torch
from lightning.fabric.strategies import FSDPStrategy
from typing_extensions import override


class FSDPOnCPU(FSDPStrategy):
    """Fabric refuses FSDPStrategy itself without a GPU."""

    @property
    @override
    def root_device(self) -> torch.device:
        return torch.device("cpu")
