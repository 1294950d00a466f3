"""One pass over the images: the largest activations of feature maps, and the probabilities of the classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..forward_trace import ForwardTrace
from ..top_activations import TopActivations
from .subject import Subject


@torch.no_grad()
def structure(subject: Subject) -> ForwardTrace:
    """The trace of a forward pass of one image, with all feature maps."""
    with ForwardTrace(subject.network) as trace:
        subject.network(subject.inputs(torch.arange(1)))
    return trace


@torch.no_grad()
def ranking(subject: Subject, layers: Sequence[str]) -> tuple[dict[str, TopActivations], Tensor | None]:
    """The largest activations of these layers, and probabilities (images, classes) on the CPU.

    The probabilities are None if the network makes no score per class.
    """
    found = {layer: TopActivations() for layer in layers}
    probabilities: list[Tensor] = []
    for batch in subject.batches():
        with ForwardTrace(subject.network, layers) as trace:
            scores = subject.network(subject.inputs(batch))
        for layer, top in found.items():
            top.update(trace.maps[layer], int(batch[0]))
        if isinstance(scores, Tensor) and scores.ndim == 2:
            probabilities.append(subject.as_probabilities(scores).cpu())
    return found, torch.cat(probabilities) if probabilities else None
