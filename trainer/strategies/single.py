"""strategy=single: one worker, the reference that every other strategy is compared with."""

from collections.abc import Sequence

import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from typing_extensions import override

from ..core.strategy_contract import StrategyContract
from .declarations import OneWorker


class Single(OneWorker, StrategyContract, SingleDeviceStrategy):
    """Plain mini-batch gradient descent on one device: w <- w - lr * g(w). Nothing crosses a wire."""

    def __init__(self) -> None:
        super().__init__()
        self.parallel_devices: Sequence[torch.device] | None = None
        """The one device that Fabric was given; Fabric sets it in every strategy that has this attribute."""

    @property
    @override
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else self._root_device
