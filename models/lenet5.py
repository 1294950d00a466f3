"""LeNet-5: two convolutions and three fully connected layers.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition,
Proceedings of the IEEE 86(11), 1998, section II.B.
"""

from collections.abc import Sequence

from torch import Tensor, nn

_SMALLEST = 16  # pixels a side: 16 -> 12 -> 6 -> 2 -> 1


class LeNet5(nn.Module):
    """The network of the paper, with today's parts where the old ones have no use any more.

    As in the paper: 6 and 16 maps of 5 x 5 convolutions, each followed by pooling over 2 x 2, then 120, 84 and
    `classes` units; 61,706 parameters on 1 x 32 x 32 with ten classes. Unlike the paper: every map of C3 sees all six
    maps below it (the paper's partial table saved memory), ReLU instead of a scaled tanh, maximum instead of
    trained average pooling, and logits for the cross entropy instead of radial basis functions.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels.

    Raises:
        ValueError: the image is smaller than 16 pixels in height or width.
    """

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < _SMALLEST:
            raise ValueError(
                f"LeNet5 needs images of at least {_SMALLEST} x {_SMALLEST} pixels, these have {height} x {width}"
            )
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * _pooled(height) * _pooled(width), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        return self.classifier(self.features(images))


def _pooled(side: int) -> int:
    """Pixels a side that are left of `side` after both convolutions and both poolings."""
    return ((side - 4) // 2 - 4) // 2


def _initialize(module: nn.Module) -> None:
    """He's initialization for layers that a ReLU follows; biases start at zero."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
