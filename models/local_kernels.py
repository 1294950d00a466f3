"""Forward and backward of locally connected filters: patches unfolded block by block, one batched product a block.

torch has no operator for filters that positions do not share, and the patches of a whole map would take
(size / stride)^2 times its memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK_VALUES = 2**24
"""Patch values unfolded at a time: 64 MB in float32, or one row of positions if that is more."""


def filter_positions(x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    """W x: the outputs of all positions of `weight`, from the part of the map under their windows.

    Args:
        weight: (rows, cols, maps, channels * size * size).
        unit_norm: filters are used as W / |W|.
    """
    return _apply(_Filter, x, weight, size, stride, unit_norm)


def spread_positions(y: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    """W^T y: contributions of the outputs `y` to the inputs under their windows."""
    return _apply(_Spread, y, weight, size, stride, unit_norm)


def _apply(kernel: Any, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    kind = x.device.type
    if kind == "meta":  # which autocast does not know
        return kernel.apply(x, weight, size, stride, unit_norm)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    with torch.autocast(kind, enabled=False):
        return kernel.apply(x.to(dtype), weight, size, stride, unit_norm)


class _Filter(torch.autograd.Function):
    """y = W x. Backward unfolds the patches again, as keeping them takes (size / stride)^2 times the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.setting = size, stride, unit_norm
        return _filtered(x, weight, *ctx.setting)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dx = _spread(gradients[0], weight, *ctx.setting, sides=x.shape[2:]) if ctx.needs_input_grad[0] else None
        dw = _weight_gradient(gradients[0], x, weight, *ctx.setting) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None, None


class _Spread(torch.autograd.Function):
    """x = W^T y, onto the inputs under the windows of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
        ctx.save_for_backward(y, weight)
        ctx.setting = size, stride, unit_norm
        sides = [(positions - 1) * stride + size for positions in y.shape[2:]]
        return _spread(y, weight, *ctx.setting, sides=sides)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        y, weight = ctx.saved_tensors
        dy = _filtered(gradients[0], weight, *ctx.setting) if ctx.needs_input_grad[0] else None
        dw = _weight_gradient(y, gradients[0], weight, *ctx.setting) if ctx.needs_input_grad[1] else None
        return dy, dw, None, None, None


def _filtered(x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    rows, cols, maps, _ = weight.shape
    y = x.new_empty(len(x), maps, rows, cols)
    for block in _blocks(weight, len(x)):
        filters, _ = _filters(weight[block], unit_norm)
        out = torch.bmm(_patches(x, block, size, stride), filters.to(x.dtype).transpose(1, 2))
        y[:, :, block] = out.view(-1, cols, len(x), maps).permute(2, 3, 0, 1)
    return y


def _spread(
    y: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool, sides: Sequence[int]
) -> Tensor:  # fmt: skip
    cols, channels = weight.shape[1], weight.shape[3] // size**2
    x = y.new_zeros(len(y), channels, *sides, dtype=torch.promote_types(y.dtype, torch.float32))
    width = (cols - 1) * stride + size
    for block in _blocks(weight, len(y)):
        filters, _ = _filters(weight[block], unit_norm)
        patches = torch.bmm(_by_position(y, block), filters.to(y.dtype))
        height = (block.stop - block.start - 1) * stride + size
        folded = F.fold(patches.permute(1, 2, 0).contiguous(), (height, width), size, stride=stride)
        top = block.start * stride
        x[:, :, top : top + height, :width] += folded
    return x.to(y.dtype)


def _weight_gradient(y: Tensor, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    """Gradient of y . W x in W (through W / |W|)."""
    gradient = torch.empty_like(weight, memory_format=torch.contiguous_format)
    for block in _blocks(weight, len(x)):
        part = torch.bmm(_by_position(y, block).transpose(1, 2), _patches(x, block, size, stride)).to(weight.dtype)
        if unit_norm:
            filters, length = _filters(weight[block], True)
            part = (part - filters * (filters * part).sum(-1, keepdim=True)) / length
        gradient[block] = part.view(gradient[block].shape)
    return gradient


def _blocks(weight: Tensor, batch: int) -> list[slice]:
    """Rows of positions whose patches are unfolded at a time."""
    rows, cols, _, inputs = weight.shape
    step = max(1, _BLOCK_VALUES // max(1, cols * batch * inputs))
    return [slice(first, min(rows, first + step)) for first in range(0, rows, step)]


def _filters(weight: Tensor, unit_norm: bool) -> tuple[Tensor, Tensor]:
    """Filters (positions, maps, inputs), normalized with `unit_norm`; and their lengths before."""
    flat = weight.flatten(0, 1)
    if not unit_norm:
        return flat, flat
    length = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).clamp_min(1e-12)
    return flat / length, length


def _patches(x: Tensor, block: slice, size: int, stride: int) -> Tensor:
    """Patches (positions, batch, channels * size * size) under the windows of a block of rows."""
    top, height = block.start * stride, (block.stop - block.start - 1) * stride + size
    windows = x[:, :, top : top + height].unfold(2, size, stride).unfold(3, size, stride)
    batch, channels, rows, cols = windows.shape[:4]
    return windows.permute(2, 3, 0, 1, 4, 5).reshape(rows * cols, batch, channels * size * size)


def _by_position(y: Tensor, block: slice) -> Tensor:
    """Outputs (positions, batch, maps) of a block of rows."""
    return y[:, :, block].permute(2, 3, 0, 1).flatten(0, 1)
