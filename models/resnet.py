"""Residual networks for images of ImageNet's size.

Source: K. He, X. Zhang, S. Ren, J. Sun, Deep residual learning for image recognition, CVPR 2016, table 1.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from .convnet_parts import initialize_for_relu
from .drop_path import drop_paths

Depth = Literal[18, 34, 50, 101, 152]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_DEEPEST_BASIC = 34  # above, blocks are bottlenecks
_EXPANSION = 4  # a bottleneck's outputs for each map inside it
_GROUPS = 32  # of GroupNorm (Wu and He 2018); divides all widths


class ResNet(nn.Module):
    """A 7 x 7 convolution, pooling, four stages of residual blocks, mean over the maps, one fully connected layer.

    Shortcuts are those of option B: a 1 x 1 convolution where the shape changes. In a bottleneck the 3 x 3 convolution
    has the stride, not the first 1 x 1 as in the paper: this variant (v1.5) is that of all reference weights.
    With 1000 classes 11,689,512 parameters at depth 18, 21,797,672 at 34, 25,557,032 at 50, 44,549,160 at 101 and
    60,192,808 at 152.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 in the paper.
        depth: 18, 34, 50, 101 or 152 layers.
        norm: "batch", as in the paper, or "group": GroupNorm with 32 groups, which is independent of other samples.
        drop_path: probability, 0 <= drop_path < 1, that a sample skips the last block in training; it falls linearly
            to 0 at the first (stochastic depth).

    Raises:
        ValueError: `depth` is not one of these, `norm` is unknown, or `drop_path` is out of range.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        depth: Depth = 50,
        norm: Literal["batch", "group"] = "batch",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"depth={depth} is none of {', '.join(map(str, get_args(Depth)))}")
        if norm not in ("batch", "group"):
            raise ValueError(f"norm={norm!r} is neither 'batch' nor 'group'")
        self.stem = nn.Sequential(
            nn.Conv2d(image_shape[0], 64, 7, stride=2, padding=3, bias=False),
            _norm(norm, 64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        dropped = drop_paths(drop_path, sum(_BLOCKS[depth]))
        inputs = 64
        for index, count in enumerate(_BLOCKS[depth]):
            maps = 64 * 2**index
            outputs = maps if depth <= _DEEPEST_BASIC else maps * _EXPANSION
            blocks: list[nn.Module] = []
            for stride in (1 if index == 0 else 2, *[1] * (count - 1)):
                blocks.append(_ResidualBlock(inputs, maps, outputs, stride, norm, next(dropped)))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(inputs, classes)
        self.apply(initialize_for_relu)

    @staticmethod
    def public_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
        """By layout of a public file: its name for each of these names. torchvision's and timm's are the same."""
        return {"torchvision, timm": {name: _public_name(name) for name in names}}

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        maps = self.stages(self.stem(images))
        return self.classifier(maps.mean(dim=(2, 3)))


def _public_name(name: str) -> str:
    """torchvision's name of a tensor: three modules of `residual` are a convolution, its norm and a ReLU."""
    module, _, own = name.rpartition(".")
    plain = {"stem.0": "conv1", "stem.1": "bn1", "classifier": "fc"}
    if module in plain:
        return f"{plain[module]}.{own}"
    _, stage, block, branch, position = module.split(".")
    if branch == "shortcut":
        return f"layer{int(stage) + 1}.{block}.downsample.{position}.{own}"
    number, kind = divmod(int(position), 3)
    return f"layer{int(stage) + 1}.{block}.{('conv', 'bn')[kind]}{number + 1}.{own}"


class _ResidualBlock(nn.Module):
    """Convolutions added to their input; [N, inputs, H, W] to [N, outputs, H / stride, W / stride].

    Two of 3 x 3, or, with more outputs than maps inside, a bottleneck of 1 x 1, 3 x 3 and 1 x 1.
    """

    def __init__(self, inputs: int, maps: int, outputs: int, stride: int, norm: str, drop_path: nn.Module) -> None:
        super().__init__()
        if outputs == maps:
            parts = [*_convolution(inputs, maps, 3, stride, norm), nn.ReLU(), *_convolution(maps, outputs, 3, 1, norm)]
        else:
            parts = [
                *_convolution(inputs, maps, 1, 1, norm),
                nn.ReLU(),
                *_convolution(maps, maps, 3, stride, norm),
                nn.ReLU(),
                *_convolution(maps, outputs, 1, 1, norm),
            ]
        self.residual = nn.Sequential(*parts)
        self.drop_path = drop_path
        same_shape = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential(*([] if same_shape else _convolution(inputs, outputs, 1, stride, norm)))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.drop_path(self.residual(x)) + self.shortcut(x))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, norm: str) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, _norm(norm, outputs)]


def _norm(kind: str, maps: int) -> nn.Module:
    return nn.BatchNorm2d(maps) if kind == "batch" else nn.GroupNorm(_GROUPS, maps)
