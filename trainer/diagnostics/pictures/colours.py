"""Values as colours."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

_STOPS = torch.tensor([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]).float()
"""Colours from low to high; distinguishable in grey and by the colour-blind."""


def around_grey(values: Tensor) -> Tensor:
    """Values (1 or 3, height, width) as uint8: zero is middle grey, the largest magnitude black or white."""
    largest = values.abs().max().clamp(min=1e-30)
    return (127.5 + 127.5 * values.float() / largest).round().clamp(0, 255).to(torch.uint8)


def heat(values: Tensor, low: float, high: float) -> Tensor:
    """Values (height, width) as uint8 (3, height, width), from violet at `low` to yellow at `high`."""
    share = ((values.float() - low) / max(high - low, 1e-30)).clamp(0, 1) * (len(_STOPS) - 1)
    below = share.floor().long().clamp(max=len(_STOPS) - 2)
    colours = torch.lerp(_STOPS[below], _STOPS[below + 1], (share - below)[..., None])
    return colours.round().to(torch.uint8).permute(2, 0, 1)


def overlay_map(image: Tensor, values: Tensor) -> Tensor:
    """An image, uint8 (1 or 3, height, width), half covered by the heat map of coarser values (rows, columns)."""
    size = (image.shape[1], image.shape[2])
    fine = interpolate(values[None, None].float(), size=size, mode="bilinear", align_corners=False)[0, 0]
    return ((image.expand(3, -1, -1).float() + heat(fine, float(fine.min()), float(fine.max())).float()) / 2).to(
        torch.uint8
    )
