"""AlexNet: the network of 2012, its convolutions in two groups.

Source: A. Krizhevsky, I. Sutskever, G. E. Hinton, ImageNet classification with deep convolutional neural networks,
NIPS 2012, sections 3 and 5.
"""

from collections.abc import Sequence

from torch import nn

from .convnet_parts import (
    ConvNet,
    fully_connected,
    gaussian,
    gaussian_fully_connected,
    overlapping_pool,
    pooled,
    require_pixels,
)

SMALLEST = 52  # pixels a side: 52 -> 12 -> 6 -> 3 -> 1


class AlexNet(ConvNet):
    """Five convolutions and three fully connected layers, on one device.

    The paper split the network over two GPUs that communicated in the third convolution and the fully connected layers;
    here the second, fourth and fifth convolution have two groups instead, which is the same function. 60,965,224
    parameters on 3 x 224 x 224 with 1000 classes (the paper's "60 million"); pixels a side are 55, 27, 13 and 6.

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
        require_pixels("AlexNet", image_shape, SMALLEST, 224)
        channels, height, width = image_shape
        features = nn.Sequential(
            pad_to_stride(image_shape),
            gaussian(nn.Conv2d(channels, 96, 11, stride=4), 0.01),
            nn.ReLU(),
            response_norm(),
            overlapping_pool(),
            gaussian(nn.Conv2d(96, 256, 5, padding=2, groups=2), 0.01, bias=1),
            nn.ReLU(),
            response_norm(),
            overlapping_pool(),
            gaussian(nn.Conv2d(256, 384, 3, padding=1), 0.01),
            nn.ReLU(),
            gaussian(nn.Conv2d(384, 384, 3, padding=1, groups=2), 0.01, bias=1),
            nn.ReLU(),
            gaussian(nn.Conv2d(384, 256, 3, padding=1, groups=2), 0.01, bias=1),
            nn.ReLU(),
            overlapping_pool(),
        )
        inputs = 256 * side_of_maps(height) * side_of_maps(width)
        classifier = gaussian_fully_connected(fully_connected(inputs, hidden, classes, dropout), hidden_bias=1)
        super().__init__(features, classifier)


def pad_to_stride(image_shape: Sequence[int]) -> nn.ZeroPad2d:
    """Zeros at the right and the bottom, so that the first convolution (11 x 11, stride 4) covers every pixel.

    cuda-convnet's last window reached over the edge; only this makes the paper's 55 of 224 pixels.
    """
    _, height, width = image_shape
    return nn.ZeroPad2d((0, -(width - 11) % 4, 0, -(height - 11) % 4))


def side_of_maps(side: int) -> int:
    """Pixels a side of the last maps for images with `side`: for 224 55, 27, 13 and then 6."""
    first = -(-(side - 11) // 4) + 1
    return pooled(pooled(pooled(first)))


def response_norm() -> nn.LocalResponseNorm:
    """Section 3.3: k = 2, n = 5, alpha = 1e-4, beta = 0.75. The paper sums over n maps, PyTorch takes their mean."""
    return nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2)
