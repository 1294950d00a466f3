"""Class activation maps (Zhou et al. 2016) and Grad-CAM (Selvaraju et al. 2017)."""

import torch
from torch import Tensor, nn

from .forward_trace import ForwardTrace

CAM, GRAD_CAM = "class activation map (CAM)", "Grad-CAM"


def class_activation_maps(network: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, str, str] | None:
    """Where in an image the evidence for a class lies.

    With global average pooling and a linear head, M_c(x, y) = sum_k w_k^c f_k(x, y); otherwise Grad-CAM,
    max(0, sum_k mean(d s_c / d f_k) f_k(x, y)), at the last feature maps.

    Args:
        inputs: (batch, channels, height, width).
        classes: (batch,).

    Returns:
        Maps (batch, height, width) of the layer, CAM or GRAD_CAM, and the layer's name; None: the network has no
        feature maps.
    """
    with torch.enable_grad(), ForwardTrace(network) as trace:
        scores = network(inputs.detach().clone().requires_grad_())
        if not trace.maps:
            return None
        layer, features = list(trace.maps.items())[-1]
        head = _linear_head(trace, features, scores)
        if head is not None:
            return torch.einsum("bk,bkhw->bhw", head.weight[classes], features).detach().cpu(), CAM, layer
        (gradients,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), features)
    weighted = (gradients.mean((2, 3), keepdim=True) * features).sum(1)
    return weighted.clamp(min=0).detach().cpu(), GRAD_CAM, layer


def _linear_head(trace: ForwardTrace, features: Tensor, scores: Tensor) -> nn.Linear | None:
    """The last layer, if it makes the scores of the means of the maps: a fact of the values, whoever computes them."""
    if not trace.heads:
        return None
    inputs, head = trace.heads[-1]
    means = features.mean((2, 3))
    if inputs.shape != means.shape or head.out_features != scores.shape[1]:
        return None
    return head if torch.allclose(inputs, means, rtol=1e-4, atol=1e-5) else None
