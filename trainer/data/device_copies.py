"""Copies of batches to a GPU, ahead of their use, on a stream of their own."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.device_copy import on_device, with_tensors


class CopiedBatch(NamedTuple):
    """A batch on the device, once the event has come."""

    batch: Any
    copied: Any


class DeviceCopies:
    """Queues copies of batches; the host waits for none of them.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def begin(self, batch: Any) -> CopiedBatch:
        """Queue the copy of a batch in host memory."""
        with torch.cuda.stream(self._stream):
            moved = with_tensors(batch, lambda tensor: on_device(tensor, self._device))
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return CopiedBatch(moved, copied)

    def end(self, copy: CopiedBatch) -> Any:
        """The batch, for what is queued on the present stream from now on."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copy.copied)

        def mark_used(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        return with_tensors(copy.batch, mark_used)
