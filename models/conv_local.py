"""A classifier that every strategy for one model can train: convolutions, untied filters, a fully connected head."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .convnet_parts import fully_connected, require_pixels
from .local_filters import LocalFilters, stream_of

_SMALLEST = 12


class ConvLocal(nn.Module):
    """Two convolutions with max pooling, one layer of untied local filters, a fully connected head; ReLU after each.

    1,535,946 parameters on 1 x 32 x 32 with ten classes: 13,248 in the convolutions, 331,776 in the untied filters,
    1,190,922 in the head.

    Args:
        classes: number of class scores.
        image_shape: channels, height, width in pixels.
        seed: of the weights.
        filters: of each 5 x 5 convolution, which a pooling of 2 x 2 follows.
        maps: untied filters at each position.
        rf: pixels a side of an untied filter's window.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training.

    Raises:
        ValueError: the image is smaller than 12 pixels in height or width, a window is larger than its map, or a value
            is out of range.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        seed: int = 0,
        filters: Sequence[int] = (16, 32),
        maps: int = 32,
        rf: int = 3,
        hidden: Sequence[int] = (1024,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_pixels("ConvLocal", image_shape, _SMALLEST, 32)
        if not filters or min(*filters, maps) < 1:
            raise ValueError(f"filters={list(filters)}, maps={maps}: every layer needs at least one filter")
        self.seed = seed
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for count in filters:
            layers += [nn.Conv2d(channels, count, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width = count, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        untied = LocalFilters((channels, height, width), maps, rf, seed=seed)
        self.local = nn.Sequential(untied, nn.ReLU())
        self.classifier = fully_connected(prod(untied.output_shape), hidden, classes, dropout)
        self.initialize()

    def initialize(self) -> None:
        """Draw the weights of convolutions and head (He et al. 2015), also of a network built on the meta device."""
        for number, layer in enumerate(self.modules()):
            if not isinstance(layer, nn.Conv2d | nn.Linear) or layer.weight.is_meta:
                continue
            stream = torch.Generator().manual_seed(stream_of(self.seed, 1 + number))
            drawn = torch.empty(layer.weight.shape, dtype=torch.float32, device="cpu")
            with torch.no_grad():
                layer.weight.copy_(drawn.normal_(0.0, (2.0 / layer.weight[0].numel()) ** 0.5, generator=stream))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (batch, classes) of images (batch, channels, height, width)."""
        return self.classifier(self.local(self.features(images)))
