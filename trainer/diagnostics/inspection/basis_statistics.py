"""Statistics of a basis of images, and of responses to natural images (Hyvarinen, Hurri and Hoyer 2009)."""

from typing import NamedTuple

import torch
from torch import Tensor

_PADDED = 32
"""Values a side of the spectrum at least."""


def excess_kurtosis(responses: Tensor) -> Tensor:
    """E[s^4] / E[s^2]^2 - 3 of each unit, (units,), about its mean; 0 for a normal distribution, large if sparse.

    Args:
        responses: (samples, units).
    """
    s = responses.double() - responses.double().mean(0)
    return s.pow(4).mean(0) / s.square().mean(0).square().clamp(min=1e-30) - 3.0


class Spectrum(NamedTuple):
    """Where the power of an image lies, (images,) each.

    Attributes:
        orientation: 0 to pi: direction in which the brightness of the strongest grating changes.
        frequency: of that grating, in cycles per pixel.
        selectivity: |sum of P exp(2 i direction)| / sum of P over the spectrum: 1 for a grating, 0 if all directions
            have the same power.
    """

    orientation: Tensor
    frequency: Tensor
    selectivity: Tensor


def spectra(images: Tensor) -> Spectrum:
    """Spectra of images (images, height, width), without their means."""
    images = images.double() - images.double().mean((1, 2), keepdim=True)
    side = max(_PADDED, 2 * max(images.shape[1:]))
    power = torch.fft.fft2(images, s=(side, side)).abs().square()
    frequencies = torch.fft.fftfreq(side, dtype=torch.float64)
    rows, columns = torch.meshgrid(frequencies, frequencies, indexing="ij")
    radius, direction = (rows.square() + columns.square()).sqrt(), torch.atan2(rows, columns)
    total = power.sum((1, 2)).clamp(min=1e-30)
    turned = (power * torch.exp(2j * direction)).sum((1, 2)).abs() / total
    peak = power.flatten(1).argmax(1)
    frequency = radius.flatten()[peak]
    return Spectrum(direction.flatten()[peak] % torch.pi, frequency, turned)
