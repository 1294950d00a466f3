"""Residual networks for images of CIFAR's size.

Source: K. He, X. Zhang, S. Ren, J. Sun, Deep residual learning for image recognition, CVPR 2016, section 4.2.
"""

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

_GROUPS = 8  # of GroupNorm; divides the widths 16, 32 and 64


class ResNetCIFAR(nn.Module):
    """The 6n + 2 layers of section 4.2: a 3 x 3 convolution, three stages of n blocks each, mean, fully connected.

    Stages have 16, 32 and 64 maps; the second and third begin with stride 2. Shortcuts are those of option A, without
    parameters. 269,722 parameters at depth 20 with ten classes (the paper's 0.27 M).

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 32 x 32 in the paper.
        depth: 6n + 2 with n >= 1: 20, 32, 44, 56 and 110 in the paper.
        norm: "batch", as in the paper, or "group": GroupNorm with 8 groups, which is independent of other samples.

    Raises:
        ValueError: `depth` is not 6n + 2, or `norm` is unknown.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], depth: int = 20, norm: Literal["batch", "group"] = "batch"
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth={depth} is not 6n + 2 with n >= 1, such as 20, 32, 44, 56 or 110")
        if norm not in ("batch", "group"):
            raise ValueError(f"norm={norm!r} is neither 'batch' nor 'group'")
        self.stem = nn.Sequential(_convolution(image_shape[0], 16), _norm(norm, 16), nn.ReLU())
        stages: list[nn.Module] = []
        width = 16
        for maps in (16, 32, 64):
            for _ in range(blocks):
                stages.append(_CifarBlock(width, maps, norm))
                width = maps
        self.blocks = nn.Sequential(*stages)
        self.classifier = nn.Linear(width, classes)
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        maps = self.blocks(self.stem(images))
        return self.classifier(maps.mean(dim=(2, 3)))


class _CifarBlock(nn.Module):
    """Two 3 x 3 convolutions, added to their input; [N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""

    def __init__(self, inputs: int, outputs: int, norm: str) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.new_maps = outputs - inputs
        self.conv1 = _convolution(inputs, outputs, self.stride)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = _convolution(outputs, outputs)
        self.norm2 = _norm(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """Option A: every second pixel, and zeros for additional maps."""
        if self.stride == 1:
            return x
        before = self.new_maps // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_maps - before))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _norm(kind: str, maps: int) -> nn.Module:
    return nn.BatchNorm2d(maps) if kind == "batch" else nn.GroupNorm(_GROUPS, maps)


def _initialize(module: nn.Module) -> None:
    """He's initialization (He et al. 2015); normalization layers keep PyTorch's ones and zeros."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
