"""ZFNet: AlexNet with a finer first layer, found by visualizing AlexNet's first layer.

Source: M. D. Zeiler, R. Fergus, Visualizing and understanding convolutional networks, arXiv 1311.2901 (ECCV 2014),
section 3 and figure 3.
"""

from collections.abc import Sequence

from torch import nn

from .alexnet import response_norm
from .convnet_parts import (
    ConvNet,
    fully_connected,
    gaussian,
    gaussian_fully_connected,
    overlapping_pool,
    pooled,
    require_pixels,
)

_SMALLEST = 63  # pixels a side: 63 -> 30 -> 15 -> 6 -> 3 -> 1


class ZFNet(ConvNet):
    """Five convolutions and three fully connected layers: 7 x 7 with stride 2 where AlexNet has 11 x 11 with stride 4.

    62,357,608 parameters on 3 x 224 x 224 with 1000 classes; pixels a side are 110, 55, 26, 13 and 6. The paper gives
    no constants of its contrast normalization across maps and does not describe its padding: here they are
    AlexNet's constants, and one pixel of padding around the image, which the figure's 110 needs.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 in the paper.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.

    Raises:
        ValueError: the image is smaller than 63 pixels in height or width, a hidden layer has no units, or `dropout`
            is out of range.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], hidden: Sequence[int] = (4096, 4096), dropout: float = 0.5
    ) -> None:
        require_pixels("ZFNet", image_shape, _SMALLEST, 224)
        channels, height, width = image_shape
        features = nn.Sequential(
            gaussian(nn.Conv2d(channels, 96, 7, stride=2, padding=1), 0.01),
            nn.ReLU(),
            overlapping_pool(),
            response_norm(),
            gaussian(nn.Conv2d(96, 256, 5, stride=2), 0.01),
            nn.ReLU(),
            overlapping_pool(),
            response_norm(),
            gaussian(nn.Conv2d(256, 384, 3, padding=1), 0.01),
            nn.ReLU(),
            gaussian(nn.Conv2d(384, 384, 3, padding=1), 0.01),
            nn.ReLU(),
            gaussian(nn.Conv2d(384, 256, 3, padding=1), 0.01),
            nn.ReLU(),
            overlapping_pool(),
        )
        inputs = 256 * _side_of_maps(height) * _side_of_maps(width)
        classifier = gaussian_fully_connected(fully_connected(inputs, hidden, classes, dropout), hidden_bias=0)
        super().__init__(features, classifier)


def _side_of_maps(side: int) -> int:
    """Pixels a side of the last maps for images with `side`: for 224, 110, 55, 26, 13 and then 6."""
    first = pooled((side - 5) // 2 + 1)
    return pooled(pooled((first - 5) // 2 + 1))
