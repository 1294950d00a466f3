"""Gabor functions fitted to images, as to receptive fields of simple cells (Jones and Palmer 1987)."""

from typing import NamedTuple

import torch
from torch import Tensor

from .basis_statistics import spectra

_STEPS = 300
_RATE = 0.05
_LEAST = 0.5
"""Pixels of the envelope's standard deviations at least."""


class GaborFit(NamedTuple):
    """Fits of images, (images,) each but for `fitted`.

    Attributes:
        residual: |image - fit|^2 / |image|^2.
        orientation: of the grating, radians from 0 to pi.
        frequency: cycles per pixel.
        along, across: standard deviations of the envelope along the brightness' change and across, pixels.
        row, column: of the envelope's centre, pixels.
        fitted: the fits, (images, height, width).
    """

    residual: Tensor
    orientation: Tensor
    frequency: Tensor
    along: Tensor
    across: Tensor
    row: Tensor
    column: Tensor
    fitted: Tensor


def fit_gabors(images: Tensor) -> GaborFit:
    """Least-squares fits of exp(-u^2 / 2 a^2 - v^2 / 2 b^2) (A cos 2 pi f u + B sin 2 pi f u).

    u, v are coordinates about the centre, turned by the orientation. A and B are solved for at each step, the other
    parameters found by Adam from the peak of the spectrum, the centre of the energy, and two sizes of the envelope,
    of which the better fit is taken.

    Args:
        images: (images, height, width); their means are taken off.
    """
    images = images.detach().double()
    images = images - images.mean((1, 2), keepdim=True)
    fits = [_fit(images, size) for size in (0.1, 0.2)]
    worse = fits[1].residual < fits[0].residual
    return GaborFit(*(
        torch.where(worse.view(-1, *[1] * (first.ndim - 1)), second, first) for first, second in zip(*fits, strict=True)
    ))  # fmt: skip


def _fit(images: Tensor, size: float) -> GaborFit:
    height, width = images.shape[1:]
    rows, columns = torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64)
    energy = images.square() / images.square().sum((1, 2), keepdim=True).clamp(min=1e-30)
    row, column = (energy.sum(2) * rows).sum(1), (energy.sum(1) * columns).sum(1)
    found = spectra(images)
    start = torch.full_like(row, size * max(height, width))
    values = [row, column, found.orientation, found.frequency, start.log(), start.log()]
    parameters = torch.stack(values).requires_grad_()
    optimizer = torch.optim.Adam([parameters], _RATE)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimizer.zero_grad()
            residual, _ = _residual(images, parameters, rows, columns)
            residual.sum().backward()
            optimizer.step()
    with torch.no_grad():
        residual, fitted = _residual(images, parameters, rows, columns)
    row, column, angle, frequency, along, across = parameters.detach()
    sizes = (along.exp() + _LEAST, across.exp() + _LEAST)
    return GaborFit(residual, angle % torch.pi, frequency.abs(), *sizes, row, column, fitted)


def _residual(images: Tensor, parameters: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    row, column, angle, frequency, along, across = (each[:, None, None] for each in parameters)
    y, x = rows[None, :, None] - row, columns[None, None, :] - column
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    envelope = torch.exp(-0.5 * (u / (along.exp() + _LEAST)) ** 2 - 0.5 * (v / (across.exp() + _LEAST)) ** 2)
    phase = 2.0 * torch.pi * frequency * u
    even, odd = (envelope * phase.cos()).flatten(1), (envelope * phase.sin()).flatten(1)
    flat = images.flatten(1)
    # least squares in A and B: the normal equations of two columns
    ee, oo, eo = (even * even).sum(1) + 1e-9, (odd * odd).sum(1) + 1e-9, (even * odd).sum(1)
    e, o = (even * flat).sum(1), (odd * flat).sum(1)
    det = (ee * oo - eo * eo).clamp(min=1e-12)
    fitted = ((oo * e - eo * o) / det)[:, None] * even + ((ee * o - eo * e) / det)[:, None] * odd
    residual = (flat - fitted).square().sum(1) / flat.square().sum(1).clamp(min=1e-30)
    return residual, fitted.view_as(images)
