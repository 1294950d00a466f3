"""Fully connected layers with ReLU between them."""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn


class MLP(nn.Module):
    """A multilayer perceptron on the pixels of an image.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels.
        hidden: units of each hidden layer; an empty list leaves a linear classifier.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.

    Raises:
        ValueError: a hidden layer without units, or `dropout` out of range.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], hidden: Sequence[int] = (256, 128), dropout: float = 0.0
    ) -> None:
        super().__init__()
        if any(units < 1 for units in hidden):
            raise ValueError(f"hidden={list(hidden)}: every hidden layer needs at least one unit")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(image_shape)
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = units
        layers.append(nn.Linear(width, classes))
        self.layers = nn.Sequential(*layers)
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        return self.layers(images)


def _initialize(module: nn.Module) -> None:
    """He's initialization for layers that a ReLU follows; biases start at zero."""
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)
