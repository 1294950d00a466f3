"""The autoencoder of COTS HPC: stages of untied local filters, L2 pooling and local contrast normalization."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .local_filters import L2Pool, LocalContrastNorm, LocalFilters, SumOverPositions, TransposedFilters


class Stage(nn.Module):
    """h = W x;  p = sqrt(eps + V h^2);  y = LCN(p), and the reconstruction error of a W^T h.

    Every filter has unit norm. V sums over the pooling window, within a map.
    """

    def __init__(
        self, shape: Sequence[int], maps: int, rf: int, stride: int, pool: int, lcn: int, seed: int, number: int
    ):
        super().__init__()
        self.filters = LocalFilters(shape, maps, rf, stride, seed, number, unit_norm=True)
        self.decoder = TransposedFilters(self.filters)
        self.pool = L2Pool(self.filters.output_shape, pool)
        self.norm = LocalContrastNorm(self.pool.output_shape, lcn)
        self.total = SumOverPositions()

    def forward(self, x: Tensor) -> Tensor:
        """Features y of a map x."""
        return self.norm(self.pool(self.filters(x)))

    def sums(self, x: Tensor) -> Tensor:
        """(batch, 3): |a W^T W x - x|^2, sum_j sqrt(eps + V_j (W x)^2), and |x|^2 for comparison with the first."""
        code = self.filters(x)
        error = self.decoder(code) - x
        return self.total(error.square(), self.pool(code), x.square())


class Stages(nn.ModuleList):
    """Stages in sequence, of which one may be in training; those before it are frozen."""

    def forward(self, x: Tensor, stage: int | None = None) -> Tensor:
        """Features of the last stage, or `Stage.sums` of one stage."""
        if stage is None:
            for each in self:
                x = each(x)
            return x
        with torch.no_grad():
            for each in self[:stage]:
                x = each(x)
        current = self[stage]
        assert isinstance(current, Stage)
        return current.sums(x)


class COTSAutoencoder(nn.Module):
    """Three stages trained to reconstruct their input, one after the other (Coates et al. 2013, Le et al. 2012).

    For stage s with input x: min over W, a of  sum_i |a W^T W x_i - x_i|^2 + lambda sum_j sqrt(eps + V_j (W x_i)^2),
    |W^(k)| = 1. The task weights the two sums.

    With 3 x 200 x 200 images and maps=8: 1,216,858,467 parameters; maps=10: 1.82 billion, maps=26: 10.95 billion.

    Args:
        image_shape: channels, height, width in pixels.
        seed: of the weights.
        maps: filters at each position, of every stage: the size of the network.
        stages: number of stages.
        rf: pixels a side of a filter's window.
        stride: pixels between two windows.
        pool: positions a side of a pooling window.
        lcn: positions a side of the windows of local contrast normalization; odd.

    Raises:
        ValueError: a window does not fit into its map.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        seed: int = 0,
        maps: int = 8,
        stages: int = 3,
        rf: int = 18,
        stride: int = 1,
        pool: int = 5,
        lcn: int = 5,
    ):
        super().__init__()
        if stages < 1 or maps < 1:
            raise ValueError(f"stages={stages}, maps={maps}: there must be at least one of each")
        self.stages = Stages()
        shape = tuple(image_shape)
        for number in range(stages):
            try:
                stage = Stage(shape, maps, rf, stride, pool, lcn, seed, number)
            except ValueError as error:
                raise ValueError(f"stage {number}, on a map of {shape}: {error}") from error
            self.stages.append(stage)
            shape = stage.norm.output_shape

    def initialize(self) -> None:
        """Initialize all parameters that are not drawn by position, for a network built on the meta device."""
        for stage in self.stages:
            assert isinstance(stage, Stage)
            stage.decoder.initialize()

    def forward(self, images: Tensor, stage: int | None = None) -> Tensor:
        """Features, or the sums of one stage.

        Args:
            images: (batch, channels, height, width).
            stage: None for the features of the last stage, (batch, maps, height, width); the number of a stage for
                (batch, 3): its reconstruction error, its sparsity term, and the energy of its input.
        """
        return self.stages(images, stage)

    def reconstruction(self, images: Tensor) -> Tensor:
        """What the first stage keeps of images, a W^T W x, as `images`."""
        first = self.stages[0]
        assert isinstance(first, Stage)
        return first.decoder(first.filters(images))
