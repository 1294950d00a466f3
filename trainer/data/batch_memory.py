"""Memory for batches, used again once nothing refers to a batch, or once its copy to a GPU is made."""

import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class RowLayout(NamedTuple):
    """How the rows of a batch lie in memory, as those of an earlier batch did."""

    rows: int
    """Rows of each sample."""
    shape: torch.Size
    """Channels, height, width."""
    dtype: torch.dtype
    channels_last: bool

    @classmethod
    def of(cls, images: Tensor, rows: int) -> "RowLayout | None":
        """Layout of a batch with `rows` rows a sample; None if it has another number of dimensions."""
        if images.dim() != 4:
            return None
        last = not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)
        return cls(rows, images.shape[1:], images.dtype, last)

    def fits(self, images: Tensor) -> bool:
        """Whether the rows of a sample have this number, shape and type."""
        return images.dtype is self.dtype and (len(images), images.shape[1:]) == (self.rows, self.shape)

    def bytes_of(self, samples: int) -> int:
        return samples * self.rows * self.shape.numel() * self.dtype.itemsize

    def place_batch(self, memory: Tensor, samples: int) -> Tensor:
        """A batch in this memory, of bytes."""
        values = memory[: self.bytes_of(samples)].view(self.dtype)
        if not self.channels_last:
            return values.view(samples * self.rows, *self.shape)
        channels, height, width = self.shape
        return values.view(samples * self.rows, height, width, channels).permute(0, 3, 1, 2)


class LentBatch(NamedTuple):
    """Room for the images of a batch."""

    images: Tensor
    memory: Tensor | None = None
    """What has to be given back; None: it comes back by itself."""


class BatchMemory:
    """A ring of memory for batches in pageable memory.

    Whoever holds a batch, or a view of it, holds its memory: it comes back when the last of them is gone. So a task may
    keep batches, for which new memory is taken then.

    Args:
        most: number of unused batches that are kept.
    """

    def __init__(self, most: int):
        # lent out and given back by any thread, also by the garbage collector: no lock
        self._unused: deque[NDArray[np.uint8]] = deque(maxlen=most)

    def lend(self, layout: RowLayout, samples: int) -> LentBatch:
        size = layout.bytes_of(samples)
        memory = self._take_bytes(size)
        loan = memory[:]  # an object of its own, which the tensor's memory refers to
        weakref.finalize(loan, self._unused.append, memory).atexit = False
        return LentBatch(layout.place_batch(torch.from_numpy(loan), samples))

    def _take_bytes(self, size: int) -> NDArray[np.uint8]:
        while self._unused:
            memory = self._unused.pop()
            if len(memory) >= size:
                return memory
        return np.empty(size, dtype=np.uint8)

    def give_back(self, lent: LentBatch, copied: Any = None) -> None:
        """Nothing: it comes back by itself."""


class PinnedMemory:
    """A ring of page-locked memory for batches that are copied to a GPU, and that nothing else refers to.

    Args:
        most: number of unused batches that are kept.
    """

    def __init__(self, most: int):
        self._unused: deque[tuple[Tensor, Any]] = deque(maxlen=most)

    def lend(self, layout: RowLayout, samples: int) -> LentBatch:
        """Room that no copy reads any more; never waited for: where all are in use, new memory is taken."""
        size = layout.bytes_of(samples)
        for _ in range(len(self._unused)):
            memory, copied = self._unused.popleft()
            if copied is not None and not copied.query():
                self._unused.append((memory, copied))
            elif len(memory) >= size:
                return LentBatch(layout.place_batch(memory, samples), memory)
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return LentBatch(layout.place_batch(memory, samples), memory)

    def give_back(self, lent: LentBatch, copied: Any = None) -> None:
        """
        Args:
            copied: event after the last copy that reads the memory; None: none does.
        """
        assert lent.memory is not None
        self._unused.append((lent.memory, copied))
