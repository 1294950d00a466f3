"""AlexNet in one tower, the network of "one weird trick".

Source: A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997, 2014, and
the configuration that he published with it (cuda-convnet2, layers/layers-imagenet-4gpu-data-model.cfg).
"""

from collections.abc import Sequence

from torch import nn

from .alexnet import SMALLEST, pad_to_stride, side_of_maps
from .convnet_parts import (
    ConvNet,
    fully_connected,
    gaussian,
    gaussian_fully_connected,
    overlapping_pool,
    require_pixels,
)


class AlexNetOWT(ConvNet):
    """Five convolutions without groups and three fully connected layers.

    61,100,840 parameters on 3 x 224 x 224 with 1000 classes: 2.47 M in the convolutions, 58.63 M in the head; pixels
    a side are 55, 27, 13 and 6. As published, the first convolution is normalized before its ReLU, the second after
    it. Unlike the paper: logits for the cross entropy over all classes instead of a logistic unit for each class.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 in the paper.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.

    Raises:
        ValueError: the image is smaller than 52 pixels in height or width, a hidden layer has no units, or `dropout`
            is out of range.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], hidden: Sequence[int] = (4096, 4096), dropout: float = 0.5
    ) -> None:
        require_pixels("AlexNetOWT", image_shape, SMALLEST, 224)
        channels, height, width = image_shape
        features = nn.Sequential(
            pad_to_stride(image_shape),
            gaussian(nn.Conv2d(channels, 64, 11, stride=4), 0.01),
            _response_norm(),
            overlapping_pool(),
            nn.ReLU(),
            gaussian(nn.Conv2d(64, 192, 5, padding=2), 0.01, bias=1),
            nn.ReLU(),
            _response_norm(),
            overlapping_pool(),
            gaussian(nn.Conv2d(192, 384, 3, padding=1), 0.03),
            nn.ReLU(),
            gaussian(nn.Conv2d(384, 256, 3, padding=1), 0.03, bias=1),
            nn.ReLU(),
            gaussian(nn.Conv2d(256, 256, 3, padding=1), 0.03, bias=1),
            nn.ReLU(),
            overlapping_pool(),
        )
        inputs = 256 * side_of_maps(height) * side_of_maps(width)
        classifier = gaussian_fully_connected(fully_connected(inputs, hidden, classes, dropout), hidden_bias=1)
        super().__init__(features, classifier)


def _response_norm() -> nn.LocalResponseNorm:
    """cmrnorm with size 5, scale 1e-4, pow 0.75 and k = 2; cuda-convnet divides the scale by the size, as PyTorch."""
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=2)
