"""Copy of a training's state in host memory, which is written while the training goes on."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_Key = tuple[Any, ...]


class HostSnapshot:
    """Copies of nested values, one at a time: a new one takes the place of the one before, in the same memory.

    Memory that was written before is copied into several times faster than new memory. From a CUDA device the copies
    are queued, into page-locked memory: the host does not wait.

    Attributes:
        bytes: of the tensors of the newest copy.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._buffers: dict[_Key, Tensor] = {}
        self._queued: torch.cuda.Event | None = None

    def take(self, content: Any) -> Any:
        """The same dicts, lists, tuples and tensors, which nothing else changes. Tensors that were one stay one."""
        before, self._buffers, self.bytes = self._buffers, {}, 0
        taken = self._copy_value(content, (), before, {})
        if any(buffer.is_pinned() for buffer in self._buffers.values()):
            self._queued = torch.cuda.Event()
            self._queued.record()
        return taken

    def wait(self) -> None:
        """Wait until the copies from the device are complete. Of another thread than the one that trains."""
        if self._queued is not None:
            self._queued.synchronize()

    def _copy_value(self, value: Any, place: _Key, before: dict[_Key, Tensor], seen: dict[_Key, Tensor]) -> Any:
        if isinstance(value, Tensor):
            same = _identity(value)
            if same not in seen:
                seen[same] = self._copy(value.detach(), place, before)
            return seen[same]
        if isinstance(value, Mapping) and hasattr(value, "copy"):
            copied: Any = copy.copy(value)
            for key, item in value.items():
                copied[key] = self._copy_value(item, (*place, key), before, seen)
            return copied
        if type(value) in (list, tuple):
            items = [self._copy_value(item, (*place, n), before, seen) for n, item in enumerate(value)]
            return items if type(value) is list else tuple(items)
        return value

    def _copy(self, tensor: Tensor, place: _Key, before: dict[_Key, Tensor]) -> Tensor:
        self.bytes += tensor.nbytes
        if tensor.layout is not torch.strided:
            return tensor.clone().cpu()
        buffer = before.get(place)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        buffer.copy_(tensor, non_blocking=True)
        self._buffers[place] = buffer
        return buffer


def _identity(tensor: Tensor) -> _Key:
    """Equal for tensors that are the same part of the same memory."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
