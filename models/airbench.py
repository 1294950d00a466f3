"""Network of airbench94, which reaches 94 % on CIFAR-10 in ten epochs.

Source: K. Jordan, 94% on CIFAR-10 in 3.29 seconds on a single GPU, arXiv 2404.00498, section 3.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convnet_parts import require_pixels

_PATCH = 2
"""Side of the patches that are whitened, in pixels."""
_EPSILON = 5e-4
"""Added to the variances of patches before they divide."""
_CHUNK = 64
_LOGIT_SCALE = 1 / 9


class Airbench(nn.Module):
    """A frozen whitening convolution, three blocks of two 3 x 3 convolutions, and a linear layer without bias.

    Weights of the normalization layers are 1 for good; their biases are trained. Convolutions begin as the identity on
    as many channels as they have inputs. 1,972,792 parameters at the default widths for 3 channels and ten classes.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 32 x 32 in the paper.
        widths: channels of the three blocks.

    Raises:
        ValueError: there are not three widths, a width is smaller than the one before, or the images are too small.
    """

    def __init__(self, classes: int, image_shape: Sequence[int], widths: Sequence[int] = (64, 256, 256)) -> None:
        super().__init__()
        channels = image_shape[0]
        components = channels * _PATCH**2
        inputs = (2 * components, *widths[:2])
        if len(widths) != 3 or any(width < before for width, before in zip(widths, inputs, strict=True)):
            text = f"no smaller than the channels before: {2 * components} after the whitening"
            raise ValueError(f"widths={list(widths)} must be three numbers, each {text}")
        require_pixels("airbench", image_shape, 9, 32)
        self.whitening = nn.Conv2d(channels, 2 * components, _PATCH)
        self.whitening.weight.requires_grad_(False)
        nn.init.zeros_(self.whitening.bias)  # pyright: ignore[reportArgumentType]  # it has one
        self.blocks = nn.Sequential(*map(_AirbenchBlock, inputs, widths))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.classifier = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        maps = self.blocks(F.gelu(self.whitening(images)))
        return self.classifier(self.pool(maps).flatten(1)) * _LOGIT_SCALE

    def weights_from_images(self, images: Tensor) -> dict[str, Tensor]:
        """Filters of the whitening convolution: the patches' principal components, and these negated.

        The components of x are those of E[x x^T], each divided by the square root of its eigenvalue + 5e-4, the
        largest first; the largest entry of a component is positive, so that all workers have the same.

        Args:
            images: normalized, [N, C, H, W].
        """
        values, vectors = torch.linalg.eigh(_second_moments(images))
        scaled = (vectors / (values + _EPSILON).sqrt()).T.flip(0)
        largest = scaled.gather(1, scaled.abs().argmax(dim=1, keepdim=True))
        filters = (scaled * largest.sign()).view(-1, images.shape[1], _PATCH, _PATCH)
        return {"whitening.weight": torch.cat([filters, -filters]).to(images.dtype)}


def _second_moments(images: Tensor) -> Tensor:
    """E[x x^T] over the patches x of images [N, C, H, W]; float64, a few images at a time."""
    size = images.shape[1] * _PATCH**2
    total, count = torch.zeros(size, size, dtype=torch.float64, device=images.device), 0
    for part in images.split(_CHUNK):
        patches = F.unfold(part.double(), _PATCH).transpose(0, 1).flatten(1)
        total += patches @ patches.T
        count += patches.shape[1]
    return total / count


class _AirbenchBlock(nn.Module):
    """Two convolutions, a maximum over 2 x 2 after the first; [N, inputs, H, W] to [N, outputs, H // 2, W // 2]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, outputs), _norm(outputs)
        self.conv2, self.norm2 = _convolution(outputs, outputs), _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3 x 3 and without bias; the first `inputs` filters are the identity."""
    layer = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:inputs])
    return layer


def _norm(maps: int) -> nn.BatchNorm2d:
    """With running statistics that follow fast (0.6 of the last ones is kept), and without a trained weight."""
    norm = nn.BatchNorm2d(maps, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
