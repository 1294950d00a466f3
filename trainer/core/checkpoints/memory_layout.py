"""Memory layout of an optimizer's state: a checkpoint's tensors are contiguous, a parameter may be channels_last."""

import torch
from torch import Tensor


def lay_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor of a parameter's shape on its device and in its layout; the same one where it is so already.

    CUDA's fused optimizers refuse a parameter whose state has other strides.
    """
    if value.device == parameter.device and value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
