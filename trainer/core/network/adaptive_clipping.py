"""trainer.gradient_clip_algorithm=adaptive."""

import torch
from torch import Tensor, nn

from .output_layer import output_parameters

_SMALLEST_NORM = 1e-3
"""Weights are taken to have at least this norm, or what begins at zero could never grow."""


@torch.no_grad()
def clip_adaptively(network: nn.Module, ratio: float) -> None:
    """Adaptive gradient clipping (Brock et al. 2021, arXiv 2102.06171, eq. 3), in place.

    For each unit i (row of a weight, a whole bias): |G_i| is at most ratio max(|W_i|, 1e-3). The output layer's
    gradients stay (section 4.1).
    """
    left_out = {id(parameter) for parameter in output_parameters(network).values()}
    for parameter in network.parameters():
        if parameter.grad is not None and id(parameter) not in left_out:
            most = _unit_norms(parameter).clamp_min(_SMALLEST_NORM).mul_(ratio)
            parameter.grad.mul_((most / _unit_norms(parameter.grad).clamp_min(1e-6)).clamp_max_(1.0))


def _unit_norms(tensor: Tensor) -> Tensor:
    dims = tuple(range(1, tensor.ndim)) or None
    return torch.linalg.vector_norm(tensor.detach(), dim=dims, keepdim=True)
