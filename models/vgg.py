"""Stages of 3 x 3 convolutions and a fully connected head: the shape of VGG, and of Deep Image.

Sources: K. Simonyan, A. Zisserman, Very deep convolutional networks for large-scale image recognition, ICLR 2015,
table 1; R. Wu, S. Yan, Y. Shan, Q. Dang, G. Sun, Deep Image: scaling up image recognition, arXiv 1501.02876, 2015.
"""

from collections.abc import Sequence

from torch import nn

from .convnet_parts import (
    ConvNet,
    fully_connected,
    gaussian_fully_connected,
    initialize_for_relu,
    require_pixels,
)


class VGG(ConvNet):
    """Stages of 3 x 3 convolutions, each stage followed by pooling over 2 x 2, then fully connected layers.

    With the default widths this is configuration D, VGG-16: 138,357,544 parameters on 3 x 224 x 224 with 1000 classes.
    Deep Image's 16 layers are the same with 6144 hidden units: 212,761,384. Unlike VGG's paper, which started from the
    weights of a shallower net, initial weights of the convolutions are those of He et al. 2015.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 in the papers.
        stages: for each stage, the filters of each of its convolutions.
        hidden: units of each hidden fully connected layer.
        dropout: probability that a hidden unit is dropped in training, 0 <= dropout < 1.
        head_std: standard deviation of the fully connected layers' initial weights; None: as He et al. have it. With
            512 x 7 x 7 inputs and more units than classes, these make the first logits so large that a learning rate
            of 0.01 diverges.

    Raises:
        ValueError: a stage or a layer is empty, the image has fewer than 2 ** len(stages) pixels in height or width,
            or `dropout` or `head_std` is out of range.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        stages: Sequence[Sequence[int]] = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
        hidden: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
        head_std: float | None = None,
    ) -> None:
        if not stages or any(not stage or min(stage) < 1 for stage in stages):
            given = [list(stage) for stage in stages]
            raise ValueError(f"stages={given}: every stage needs a convolution, and every convolution a filter")
        if head_std is not None and head_std <= 0:
            raise ValueError(f"head_std={head_std} must be greater than 0, or null")
        halvings = 2 ** len(stages)
        require_pixels("VGG", image_shape, halvings, 224)
        maps, height, width = image_shape
        layers: list[nn.Module] = []
        for stage in stages:
            for filters in stage:
                layers += [nn.Conv2d(maps, filters, 3, padding=1), nn.ReLU()]
                maps = filters
            layers.append(nn.MaxPool2d(2))
        features = nn.Sequential(*layers)
        inputs = maps * (height // halvings) * (width // halvings)
        classifier = fully_connected(inputs, hidden, classes, dropout)
        super().__init__(features, classifier)
        self.apply(initialize_for_relu)
        if head_std is not None:
            gaussian_fully_connected(classifier, hidden_bias=0, std=head_std)
