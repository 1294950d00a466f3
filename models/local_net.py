"""A classifier of untied local filters, for strategy=spatial."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .local_filters import L2Pool, LocalContrastNorm, LocalFilters, stream_of


class LocalNet(nn.Module):
    """Stages of untied local filters, L2 pooling and local contrast normalization, then a linear classifier.

    Args:
        classes: number of class scores.
        image_shape: channels, height, width in pixels.
        seed: of the weights.
        maps: filters at each position, stage by stage.
        rf, stride: side of a filter's window, and pixels between two.
        pool, pool_stride: side of a pooling window, and positions between two.
        lcn: side of the windows of local contrast normalization; odd.
        batch_norm: normalize over the batch after each stage's filters.
        dropout: probability that a feature is dropped in training.

    Raises:
        ValueError: a window does not fit into its map, or a value out of range.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        seed: int = 0,
        maps: Sequence[int] = (8, 8),
        rf: int = 5,
        stride: int = 1,
        pool: int = 3,
        pool_stride: int = 1,
        lcn: int = 5,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
        if not maps or min(maps) < 1:
            raise ValueError(f"maps={list(maps)}: at least one stage, of at least one map")
        self.seed = seed
        layers: list[nn.Module] = []
        shape = tuple(image_shape)
        for number, count in enumerate(maps):
            try:
                filters = LocalFilters(shape, count, rf, stride, seed, number)
                pooling = L2Pool(filters.output_shape, pool, pool_stride)
                norm = LocalContrastNorm(pooling.output_shape, lcn)
            except ValueError as error:
                raise ValueError(f"stage {number}, on a map of {shape}: {error}") from error
            layers += [filters, *([nn.BatchNorm2d(count)] if batch_norm else []), pooling, norm]
            shape = norm.output_shape
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(prod(shape), classes)
        self.initialize()

    def initialize(self) -> None:
        """Initialize all parameters that are not drawn by position, also for a network built on the meta device."""
        weight, bias = self.classifier.weight, self.classifier.bias
        if not weight.is_meta:
            stream = torch.Generator().manual_seed(stream_of(self.seed, len(self.features)))
            drawn = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
            with torch.no_grad():
                weight.copy_(drawn.normal_(0.0, weight.shape[1] ** -0.5, generator=stream))
        nn.init.zeros_(bias)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (batch, classes) of images (batch, channels, height, width)."""
        return self.classifier(self.features(images).flatten(1))
