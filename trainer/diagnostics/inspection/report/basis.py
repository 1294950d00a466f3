"""Picture of a basis of images, with its statistics."""

from typing import Any

import torch
from torch import Tensor

from ...pictures.colours import around_grey
from ...pictures.tiles import sheet, tile
from ..basis_statistics import excess_kurtosis, spectra
from ..gabor import fit_gabors
from .findings import Picture
from .subject import Subject

_SIDE = 40
_SEED = 0


class BasisStatistics:
    """Figures by which a learned basis differs from one that whitens alone.

    Args:
        network: with `basis()`, `linear_responses(images)`, `whitened(images)` (`models/reconstruction_ica.py`).
        inputs: images of one channel, as the network takes them.

    Attributes:
        basis: (units, height, width).
        fits: Gabor functions fitted to it.
        kurtosis, kurtosis_whitened: mean excess kurtosis of the units' responses, and of the whitened components.
        selectivity, selectivity_random: median orientation selectivity, and that of a random basis.
        residual, residual_random: median residual of the Gabor fits, and that of a random basis.
    """

    def __init__(self, network: Any, inputs: Tensor):
        whitened = network.whitened(inputs).cpu()
        self.basis: Tensor = network.basis().mean(1).cpu()
        stream = torch.Generator().manual_seed(_SEED)
        rows = torch.randn(len(self.basis), whitened.shape[1], generator=stream)
        # the whitened space's inverse from the images themselves: least squares
        flat = inputs.flatten(1).cpu()
        inverse = torch.linalg.lstsq(whitened.double(), (flat - flat.mean(1, keepdim=True)).double()).solution
        random = (rows.double() @ inverse).view(-1, *self.basis.shape[1:])
        self.fits = fit_gabors(self.basis)
        self.kurtosis = float(excess_kurtosis(network.linear_responses(inputs).cpu()).mean())
        self.kurtosis_whitened = float(excess_kurtosis(whitened).mean())
        self.selectivity = float(spectra(self.basis).selectivity.median())
        self.selectivity_random = float(spectra(random).selectivity.median())
        self.residual = float(self.fits.residual.median())
        self.residual_random = float(fit_gabors(random).residual.median())


def has_basis(network: Any) -> bool:
    """Whether a network has what the statistics are taken of."""
    return all(hasattr(network, name) for name in ("basis", "linear_responses", "whitened"))


@torch.no_grad()
def draw_basis(subject: Subject) -> Picture:
    """The basis on the left, Gabor functions fitted to it on the right."""
    inputs = torch.cat([subject.inputs(batch) for batch in subject.batches()])
    found = BasisStatistics(subject.network, inputs)
    sides = [
        sheet([tile(around_grey(each[None]), _SIDE) for each in images], gap=2)
        for images in (found.basis, found.fits.fitted)
    ]
    sparse = f"excess kurtosis {found.kurtosis:.1f}, whitened {found.kurtosis_whitened:.1f}"
    oriented = f"orientation selectivity {found.selectivity:.2f}, random basis {found.selectivity_random:.2f}"
    localised = f"residual {found.residual:.2f}, random basis {found.residual_random:.2f}"
    units = f"basis of {len(found.basis)} units"
    captions = [[f"{units}: {sparse}", oriented], ["Gabor functions fitted to it", localised]]
    text = f"{units}: {sparse}; {oriented}; Gabor functions fitted to it: {localised}"
    return Picture("basis", sheet(sides, captions, columns=2, gap=4), text)
