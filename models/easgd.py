"""The two networks on which elastic averaging SGD was published.

Source: S. Zhang, A. Choromanska, Y. LeCun, Deep learning with elastic averaging SGD, NIPS 2015 (arXiv 1412.6651),
section 5. The paper gives sizes of maps, not initial weights: here they are those of He et al. 2015.
"""

from collections.abc import Sequence

from torch import nn

from .convnet_parts import ConvNet, fully_connected, initialize_for_relu, require_pixels

_SMALLEST_CIFAR = 24  # pixels a side: 24 -> 20 -> 10 -> 6 -> 3 -> 1
_SMALLEST_IMAGENET = 101  # pixels a side: 101 -> 48 -> 16 -> 12 -> 6 -> 4 -> 3 -> 2 -> 1


class CIFAR7(ConvNet):
    """The 7 layers for CIFAR-10: three convolutions with two poolings between them, two fully connected layers.

    351,946 parameters on 3 x 28 x 28 (crops of the 32 x 32 images) with ten classes; maps have 24, 12, 8, 4 and 2
    pixels a side.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 28 x 28 in the paper.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.

    Raises:
        ValueError: the image is smaller than 24 pixels in height or width, a hidden layer has no units, or `dropout`
            is out of range.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], hidden: Sequence[int] = (256,), dropout: float = 0.5
    ) -> None:
        require_pixels("CIFAR7", image_shape, _SMALLEST_CIFAR, 28)
        channels, height, width = image_shape
        features = nn.Sequential(
            nn.Conv2d(channels, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 64, 3),
            nn.ReLU(),
        )
        inputs = 64 * _side_of_cifar_maps(height) * _side_of_cifar_maps(width)
        classifier = fully_connected(inputs, hidden, classes, dropout)
        super().__init__(features, classifier)
        self.apply(initialize_for_relu)


class ImageNet11(ConvNet):
    """The 11 layers for ImageNet: five convolutions, three poolings, three fully connected layers.

    61,128,808 parameters on 3 x 221 x 221 with 1000 classes; maps have 108, 36, 32, 16, 14, 13, 12 and 6 pixels a side.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 221 x 221 in the paper.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.

    Raises:
        ValueError: the image is smaller than 101 pixels in height or width, a hidden layer has no units, or `dropout`
            is out of range.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], hidden: Sequence[int] = (4096, 4096), dropout: float = 0.5
    ) -> None:
        require_pixels("ImageNet11", image_shape, _SMALLEST_IMAGENET, 221)
        channels, height, width = image_shape
        features = nn.Sequential(
            nn.Conv2d(channels, 96, 7, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(3),
            nn.Conv2d(96, 256, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(256, 384, 3),
            nn.ReLU(),
            nn.Conv2d(384, 384, 2),
            nn.ReLU(),
            nn.Conv2d(384, 256, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        inputs = 256 * _side_of_imagenet_maps(height) * _side_of_imagenet_maps(width)
        classifier = fully_connected(inputs, hidden, classes, dropout)
        super().__init__(features, classifier)
        self.apply(initialize_for_relu)


def _side_of_cifar_maps(side: int) -> int:
    """Pixels a side of the last maps for images with `side`: for 28, 24, 12, 8, 4 and then 2."""
    return ((side - 4) // 2 - 4) // 2 - 2


def _side_of_imagenet_maps(side: int) -> int:
    """Pixels a side of the last maps for images with `side`: for 221, 108, 36, 32, 16, 14, 13, 12 and then 6."""
    second = (((side - 7) // 2 + 1) // 3 - 4) // 2
    return (second - 2 - 1 - 1) // 2
