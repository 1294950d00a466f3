"""Deconvolutional network (Zeiler and Fergus 2014), and guided backpropagation (Springenberg et al. 2015)."""

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from .forward_trace import ForwardTrace


class Backward(Enum):
    """What projects an activation down to the pixels; the value says it in a title."""

    DECONVNET = "deconvnet"
    GUIDED = "guided backpropagation"
    GRADIENT = "gradient"


class DeconvReLU(torch.autograd.Function):
    """ReLU whose backward is ReLU of the signal, whatever the input was: R_i = max(0, R_(i+1))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Tensor:
        return signals[0].clamp(min=0)


class GuidedReLU(torch.autograd.Function):
    """ReLU whose backward is ReLU of the gradient: R_i = (x_i > 0) max(0, R_(i+1))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Tensor:
        return signals[0].clamp(min=0) * ctx.saved_tensors[0]


_RECTIFIERS = {Backward.DECONVNET: DeconvReLU.apply, Backward.GUIDED: GuidedReLU.apply, Backward.GRADIENT: None}


def backward_of(trace: ForwardTrace) -> tuple[Backward, str]:
    """The projection that suits a network, and why it is not the deconvnet.

    The deconvnet inverts max-pooling by the locations of the maxima. Where strides or residual branches take the place
    of max-pooling, no locations condition the projection on the image, and guided backpropagation does so by the
    ReLUs (Springenberg et al. 2015, section 3.4).
    """
    if not trace.relu_maps:
        return Backward.GRADIENT, "no ReLU after feature maps"
    if trace.branches:
        return Backward.GUIDED, "residual branches"
    if trace.strides and not trace.max_pooling:
        return Backward.GUIDED, "strides in place of max-pooling"
    return Backward.DECONVNET, ""


def project(
    network: nn.Module, inputs: Tensor, layer: str, maps: Tensor, positions: Tensor, backward: Backward
) -> Tensor:
    """Activations projected down to the pixels: a vector-Jacobian product with another backward of ReLU.

    The signal is zero but for one activation of each image. Max-pooling sends it to the location of the maximum,
    convolutions through their transposed filters, everything else (normalization in evaluation mode) by its gradient.

    Args:
        inputs: (batch, channels, height, width).
        maps, positions: (batch,): for each image the feature map and the position in it, row by row.

    Returns:
        As `inputs`.
    """
    inputs = inputs.detach().clone().requires_grad_()
    with torch.enable_grad(), ForwardTrace(network, {layer}, _RECTIFIERS[backward]) as trace:
        network(inputs)
    features = trace.maps[layer]
    signal = torch.zeros_like(features).flatten(2)
    images = torch.arange(len(inputs), device=inputs.device)
    signal[images, maps, positions] = features.detach().flatten(2)[images, maps, positions]
    (projection,) = torch.autograd.grad(features, inputs, signal.view_as(features))
    return projection
