"""Stimuli that a neuron answers most, found by gradient (Erhan et al. 2009, Le et al. 2012)."""

from collections.abc import Callable, Sequence
from math import cos, pi

import torch
from torch import Tensor

_STEPS = 100
_SEED = 0


def best_stimuli(
    responses: Callable[[Tensor], Tensor], image_shape: Sequence[int], count: int, norm: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """argmax over x of f_i(x) with |x| = norm, one x for each neuron i: projected gradient ascent from noise.

    A step goes along the gradient's direction, at first as far as x is long, then less and less. The best x on the way
    is kept. Draws come from a generator of its own.

    Args:
        responses: images (count, channels, height, width) to (count,), the response of neuron i to image i.
        norm: Euclidean length of an image, such as the mean of those that the network is shown.

    Returns:
        Images as `responses` takes them, and their responses, on the CPU.
    """
    stream = torch.Generator().manual_seed(_SEED)
    x = _of_length(torch.randn(count, *image_shape, generator=stream).to(device), norm)
    best, found = x.clone(), torch.full((count,), -torch.inf, device=device)
    for step in range(_STEPS):
        with torch.enable_grad():
            x.requires_grad_()
            answers = responses(x)
            (gradients,) = torch.autograd.grad(answers.sum(), x)
        x, answers = x.detach(), answers.detach()
        better = answers > found
        best[better], found = x[better], torch.maximum(found, answers)
        length = norm * (1 + cos(pi * step / _STEPS)) / 2
        x = _of_length(x + _of_length(gradients, length), norm)
    return best.cpu(), found.cpu()


def _of_length(images: Tensor, length: float) -> Tensor:
    norms = images.flatten(1).norm(dim=1).clamp(min=1e-30)
    return images * (length / norms).view(-1, 1, 1, 1)
