"""Reconstruction ICA with topographic L2 pooling (Le et al. 2011, Hyvarinen, Hurri and Hoyer 2009)."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EPSILON = 1e-2
"""Under the root of a pooling unit, in units of a whitened component's variance."""


class WhitenedPatches(nn.Module):
    """z = E^(-1/2) D^T (x - mean of x): a patch without its mean, in principal components of unit variance.

    Args:
        size: values of a patch.
        kept: components, those with the largest variance.
    """

    matrix: Tensor
    inverse: Tensor

    def __init__(self, size: int, kept: int):
        super().__init__()
        self.register_buffer("matrix", torch.eye(kept, size))
        self.register_buffer("inverse", torch.eye(size, kept))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, kept) of images (batch, channels, height, width)."""
        return F.linear(centred(images), self.matrix)

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """The two matrices for images, by name. A component's largest entry is positive."""
        patches = centred(images).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        kept = len(self.matrix)
        values, vectors = values.flip(0)[:kept], vectors.flip(1)[:, :kept]
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        vectors = vectors * largest.sign()
        roots = values.clamp(min=1e-12 * float(values[0])).sqrt()
        return {"matrix": (vectors / roots).T.to(images.dtype), "inverse": (vectors * roots).to(images.dtype)}


class TopographicStage(nn.Module):
    """p = sqrt(eps + V (W z)^2) of whitened patches z; V sums over 3 x 3 neighbours on a torus of units.

    Every row of W has unit norm. Features are (batch, units, 1, 1).
    """

    def __init__(self, size: int, kept: int, side: int, seed: int):
        super().__init__()
        self.whitening = WhitenedPatches(size, kept)
        self.side = side
        weight = torch.randn(side * side, kept, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(F.normalize(weight, dim=1))

    def unit_rows(self) -> Tensor:
        """W, (units, kept)."""
        return F.normalize(self.weight, dim=1)

    def pooled(self, code: Tensor) -> Tensor:
        """Energies (batch, units) of the neighbourhoods of linear responses."""
        energy = code.square().view(-1, 1, self.side, self.side)
        around = F.pad(energy, (1, 1, 1, 1), mode="circular")
        return (_EPSILON + 9.0 * F.avg_pool2d(around, 3, stride=1)).sqrt().flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(F.linear(self.whitening(images), self.unit_rows()))[:, :, None, None]

    def sums(self, images: Tensor) -> Tensor:
        """(batch, 3): |W^T W z - z|^2, sum of p, |z|^2."""
        whitened, rows = self.whitening(images), self.unit_rows()
        code = F.linear(whitened, rows)
        error = code @ rows - whitened
        return torch.stack([error.square().sum(1), self.pooled(code).sum(1), whitened.square().sum(1)], dim=1)


class TopographicStages(nn.ModuleList):
    """The one stage, as task=reconstruction trains stages."""

    def forward(self, images: Tensor, stage: int | None = None) -> Tensor:
        """Features, or `TopographicStage.sums`."""
        only = self[0]
        assert isinstance(only, TopographicStage)
        return only(images) if stage is None else only.sums(images)


class ReconstructionICA(nn.Module):
    """Reconstruction ICA of whole images, for patches of natural images; trained by task=reconstruction.

    min over W of  mean |W^T W z - z|^2 + lambda sum_j sqrt(eps + V_j (W z)^2),  |W^(k)| = 1, of whitened images z. V
    sums over the neighbours of a unit on a torus, so that neighbours become alike (topographic ICA). The whitening is
    computed from the training images when a run begins (`weights_from_images`), and saved with the network.

    Args:
        image_shape: channels, height, width in pixels.
        side: units a side of the torus.
        kept: principal components that are kept: whitening would amplify the noise of the others.
        seed: of the weights.

    Raises:
        ValueError: a number under 1, or more components than an image without its mean has.
    """

    def __init__(self, image_shape: Sequence[int], side: int = 8, kept: int = 64, seed: int = 0):
        super().__init__()
        size = prod(image_shape)
        if side < 3:
            raise ValueError(f"side={side} must be at least 3: a unit has neighbours on all sides")
        if not 1 <= kept < size:
            raise ValueError(f"kept={kept} must be at least 1 and less than the {size} values of an image")
        self.image_shape = tuple(image_shape)
        self.stages = TopographicStages([TopographicStage(size, kept, side, seed)])

    @property
    def stage(self) -> TopographicStage:
        only = self.stages[0]
        assert isinstance(only, TopographicStage)
        return only

    def weights_from_images(self, images: Tensor) -> dict[str, Tensor]:
        """The whitening of normalized images [N, C, H, W]."""
        found = self.stage.whitening.of_images(images)
        return {f"stages.0.whitening.{name}": value for name, value in found.items()}

    def forward(self, images: Tensor, stage: int | None = None) -> Tensor:
        """Features (batch, units, 1, 1), or the sums of stage 0."""
        return self.stages(images, stage)

    def reconstruction(self, images: Tensor) -> Tensor:
        """What the units keep of images, with the means of these, as `images`."""
        rows, whitening = self.stage.unit_rows(), self.stage.whitening
        made = F.linear(F.linear(whitening(images), rows) @ rows, whitening.inverse)
        return made.view_as(images) + images.mean((1, 2, 3), keepdim=True)

    def basis(self) -> Tensor:
        """The image that each unit adds to a reconstruction, (units, channels, height, width): columns of A."""
        return F.linear(self.stage.unit_rows(), self.stage.whitening.inverse).view(-1, *self.image_shape)

    def whitened(self, images: Tensor) -> Tensor:
        """(batch, kept): principal components of unit variance."""
        return self.stage.whitening(images)

    def linear_responses(self, images: Tensor) -> Tensor:
        """(batch, units): W z, before pooling."""
        return F.linear(self.stage.whitening(images), self.stage.unit_rows())


def centred(images: Tensor) -> Tensor:
    """Images without their means, (batch, values)."""
    flat = images.flatten(1)
    return flat - flat.mean(1, keepdim=True)
