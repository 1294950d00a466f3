"""Weights and activations, for histograms."""

from collections.abc import Iterator

import torch
from torch import nn

from ..forward_trace import ForwardTrace
from .findings import Distribution
from .subject import Subject


@torch.no_grad()
def distributions(subject: Subject) -> Iterator[Distribution]:
    """Values of every parameter, and of the feature maps of every layer for one batch of images."""
    for name, parameter in subject.network.named_parameters():
        yield Distribution(f"weights/{name}", parameter.float().cpu())
    with ForwardTrace(subject.network) as trace:
        subject.network(subject.inputs(subject.batches()[0]))
    for layer, maps in trace.maps.items():
        yield Distribution(f"activations/{layer}", maps.float().cpu())


def gradients(network: nn.Module) -> Iterator[Distribution]:
    """Values of the gradients that the parameters have."""
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            yield Distribution(f"gradients/{name}", parameter.grad.detach().float().cpu())
