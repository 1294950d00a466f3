"""LeNet-5: two convolutions and three fully connected layers.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition,
Proceedings of the IEEE 86(11), 1998, section II.B.
"""

from collections.abc import Sequence

from torch import nn

from .convnet_parts import ConvNet, fully_connected, initialize_for_relu, require_pixels

_SMALLEST = 16  # pixels a side: 16 -> 12 -> 6 -> 2 -> 1


class LeNet5(ConvNet):
    """The network of the paper, with modern parts in place of obsolete ones.

    As in the paper: 6 and 16 maps of 5 x 5 convolutions, each followed by pooling over 2 x 2, then 120, 84 and
    `classes` units; 61,706 parameters on 1 x 32 x 32 with ten classes. Unlike the paper: every map of C3 reads all
    six maps below it (the paper's partial table saved memory), ReLU instead of a scaled tanh, maximum instead of
    trained average pooling, and logits for the cross entropy instead of radial basis functions.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels.

    Raises:
        ValueError: the image is smaller than 16 pixels in height or width.
    """

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        require_pixels("LeNet5", image_shape, _SMALLEST, 32)
        channels, height, width = image_shape
        features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        classifier = fully_connected(16 * _pooled(height) * _pooled(width), (120, 84), classes, dropout=0)
        super().__init__(features, classifier)
        self.apply(initialize_for_relu)


def _pooled(side: int) -> int:
    """Pixels a side after both convolutions and both poolings."""
    return ((side - 4) // 2 - 4) // 2
