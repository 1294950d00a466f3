"""strategy=single: one worker, the reference that every other strategy is compared with."""

import torch
from lightning.fabric.strategies import SingleDeviceStrategy


class Single(SingleDeviceStrategy):
    """Plain mini-batch gradient descent on one device: w <- w - lr * g(w). Nothing crosses a wire."""

    @property
    def root_device(self) -> torch.device:
        # The accelerator is set by Fabric after construction, from topology.device.
        return torch.device("cuda", 0) if type(self.accelerator).__name__ == "CUDAAccelerator" else torch.device("cpu")
