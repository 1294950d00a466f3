"""Copies from host memory to a device for which the host does not wait."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. The copy is queued there: a pageable source would make the host wait for it."""
    if tensor.device == device:
        return tensor
    pinned = tensor.pin_memory() if tensor.device.type == "cpu" and device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def numbers_on_device(numbers: Sequence[Tensor | float], device: torch.device) -> Tensor:
    """The numbers as float64 on a device, by one copy, unless some are scalars of tensors."""
    plain = [number for number in numbers if not isinstance(number, Tensor)]
    if len(plain) == len(numbers):
        return on_device(torch.tensor(plain, dtype=torch.float64), device)
    scalars = [
        on_device(number, device).reshape(()).double()
        if isinstance(number, Tensor)
        else torch.full((), number, dtype=torch.float64, device=device)
        for number in numbers
    ]
    return torch.stack(scalars)


def pin_batch(batch: Any) -> Any:
    """The batch, with what is in host memory in page-locked memory."""
    return with_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)


def with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch, of tuples and named tuples, with its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, tuple):
        parts = [with_tensors(part, change) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch
