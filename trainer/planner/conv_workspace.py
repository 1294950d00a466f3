"""Memory inside of a convolution on the CPU, where oneDNN copies maps and weights into a layout of its own.

The layout holds channels in blocks of 16 (with AVX-512), which are padded; results are copied back while their blocked
copies are still there. Read off the CPU's allocator with torch 2.13.0; channels_last needs no copies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_BLOCK = 16
_PLAIN_CHANNELS = 4
"""Maps with at most this many channels are read as they are."""


def workspace(operation: Any, arguments: tuple[Any, ...], result: Any) -> int:
    """The most bytes that an operation holds at a time, its results included; 0: its results are all."""
    inside = _INSIDE.get(operation.overloadpacket)
    return 0 if inside is None else inside(result, *arguments)


def _forward(result: Tensor, x: Tensor, weight: Tensor, *options: Any) -> int:
    transposed = options[4]
    if transposed or not _is_blocked(x, weight):
        return 0
    source = _pad_maps(x, _BLOCK) if x.shape[1] >= _BLOCK else 0
    target = _pad_maps(result, _BLOCK)
    return max(source + _padded_weight(weight) + target, target + _bytes(result))


def _backward(result: Any, gradient: Tensor, x: Tensor, weight: Tensor, *options: Any) -> int:
    transposed, wanted = options[4], options[7]
    if transposed or not _is_blocked(x, weight):
        return 0
    target, blocked = _pad_maps(gradient, _BLOCK), _padded_weight(weight)
    most = held = 0
    if wanted[0]:
        source, held = _pad_maps(x, _BLOCK), _bytes(x)
        most = max(target + blocked + source, source + held)
    if wanted[1]:
        channels = x.shape[1]
        source = 0 if channels <= _PLAIN_CHANNELS else _pad_maps(x, _BLOCK if channels >= _BLOCK else _BLOCK // 2)
        most = max(most, held + target + source + blocked, held + target + blocked + _bytes(weight))
    return most


_INSIDE: dict[Any, Callable[..., int]] = {aten.convolution: _forward, aten.convolution_backward: _backward}


def _is_blocked(x: Tensor, weight: Tensor) -> bool:
    by_channel = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight)]
    return x.ndim == 4 and x.dtype is not torch.float64 and not any(by_channel)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _pad_maps(maps: Tensor, block: int) -> int:
    channels = maps.shape[1]
    return _bytes(maps) // channels * (-(-channels // block) * block) if channels else 0


def _padded_weight(weight: Tensor) -> int:
    """Elements of the blocked weight; few input channels are not padded."""
    rows = -(-weight.shape[0] // _BLOCK) * _BLOCK
    columns = weight.shape[1] if weight.shape[1] < _BLOCK else -(-weight.shape[1] // _BLOCK) * _BLOCK
    return _bytes(weight) // (weight.shape[0] * weight.shape[1]) * rows * columns
