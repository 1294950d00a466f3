"""Shared parts of plain convolutional networks: the network itself, pooling, fully connected head, initial weights."""

from collections.abc import Sequence

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Convolutional features followed by a classifier.

    Args:
        features: images [N, C, H, W] to maps.
        classifier: these maps to logits [N, classes]; built after `features`, which fixes the order of random draws.
    """

    def __init__(self, features: nn.Sequential, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        return self.classifier(self.features(images))


def require_pixels(network: str, image_shape: Sequence[int], smallest: int, published: int) -> None:
    """Refuse images that are too small for the convolutions and poolings.

    Raises:
        ValueError: height or width is below `smallest`.
    """
    _, height, width = image_shape
    if min(height, width) < smallest:
        raise ValueError(
            f"{network} needs images of at least {smallest} x {smallest} pixels, these have {height} x {width}; "
            f"enlarge them (it was published for {published} x {published}) or choose another model"
        )


def overlapping_pool() -> nn.MaxPool2d:
    """Maximum over 3 x 3 in steps of 2, including an incomplete last window: cuda-convnet rounds sizes up."""
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def pooled(side: int) -> int:
    """Pixels a side after `overlapping_pool`."""
    return -(-(side - 3) // 2) + 1


def fully_connected(inputs: int, hidden: Sequence[int], classes: int, dropout: float) -> nn.Sequential:
    """Linear layers with ReLU between them; each hidden layer's output is dropped with probability `dropout`.

    Takes [N, C, H, W] with C * H * W = `inputs`, gives logits [N, classes].

    Raises:
        ValueError: a hidden layer without units, or `dropout` out of range.
    """
    if any(units < 1 for units in hidden):
        raise ValueError(f"hidden={list(hidden)}: every hidden layer needs at least one unit")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(inputs, units), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def gaussian(layer: nn.Conv2d | nn.Linear, std: float, bias: float = 0.0) -> nn.Module:
    """The layer with weights drawn from a normal distribution around zero, and biases `bias`."""
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


def gaussian_fully_connected(classifier: nn.Sequential, hidden_bias: float, std: float = 0.01) -> nn.Sequential:
    """The head with weights of standard deviation `std`; hidden biases are `hidden_bias`, those of the logits zero."""
    *hidden, logits = (layer for layer in classifier if isinstance(layer, nn.Linear))
    for layer in hidden:
        gaussian(layer, std, hidden_bias)
    gaussian(logits, std)
    return classifier


def initialize_for_relu(module: nn.Module) -> None:
    """He's initialization (He et al. 2015) for `Module.apply`; biases start at zero, norms keep PyTorch's values."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
