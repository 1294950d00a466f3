"""What the configs of test_systems.py name: a worker with too little memory for the whole network."""

from typing import Any

import torch


class MemoryLimit:
    """Ends a worker whose parameters, gradients and optimizer state exceed a number of bytes, as on a small device."""

    def __init__(self, limit: int):
        self.limit = limit

    def on_step_end(self, state: Any) -> None:
        held: list[torch.Tensor] = []
        for parameter in state.task.parameters():
            kept = state.raw_optimizer.state.get(parameter, {}).values()
            held += [parameter, *(value for value in kept if isinstance(value, torch.Tensor))]
            held += [] if parameter.grad is None else [parameter.grad]
        size = sum(tensor.nbytes for tensor in held)
        if size > self.limit:
            raise MemoryError(f"{size} bytes do not fit into {self.limit}")
