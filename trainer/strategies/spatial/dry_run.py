"""Networks without memory, in which a forward and backward is run to see what they would send."""

import torch
from torch import nn


def leave_meta(network: nn.Module) -> None:
    """Replace meta tensors by tensors of the current mode, in place: FakeTensorMode cannot swap, as `to_empty` does."""
    made: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                trained = parameter.requires_grad
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="cpu"), trained)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
