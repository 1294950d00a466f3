"""A ring of shared memory, into which reading processes put the images of batches."""

import itertools
import mmap
import os
import weakref
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batch_memory import LentBatch, RowLayout


class SharedSlot(NamedTuple):
    """Room for the images of a batch, as another process finds it."""

    serial: int
    """Serial number of the ring."""
    path: str
    start: int
    end: int
    layout: RowLayout


class SharedRing:
    """Slots for batches of one layout, in the process that asks for them.

    The memory has no name in a file system, so none is left behind, and a container's limit of /dev/shm is not its own.

    Args:
        samples: of the largest batch.
        slots: number of batches.

    Raises:
        OSError: no memory, or no descriptor.
    """

    _serials = itertools.count()

    def __init__(self, layout: RowLayout, samples: int, slots: int):
        self._layout = layout
        self._size = -(-layout.bytes_of(samples) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._serial = next(self._serials)
        handle = os.memfd_create("leyden-batches")
        weakref.finalize(self, os.close, handle)
        os.ftruncate(handle, self._size * slots)
        self._path = f"/proc/{os.getpid()}/fd/{handle}"
        self._memory = np.frombuffer(mmap.mmap(handle, self._size * slots), np.uint8)
        # given back by any thread, also by the garbage collector: no lock
        self._unused = deque(range(0, self._size * slots, self._size))

    def fits(self, layout: RowLayout, samples: int) -> bool:
        """Whether such a batch can be put into a slot."""
        return layout == self._layout and layout.bytes_of(samples) <= self._size

    def lend(self, samples: int) -> SharedSlot | None:
        """A slot for a batch of so many samples; None: all are in use, or too small."""
        if not self._unused or not self.fits(self._layout, samples):
            return None
        start = self._unused.pop()
        return SharedSlot(self._serial, self._path, start, start + self._size, self._layout)

    def give_back(self, slot: SharedSlot) -> None:
        """Take back a slot into which no process writes any more."""
        self._unused.append(slot.start)

    def images(self, slot: SharedSlot, samples: int) -> Tensor:
        """What was put into a slot, which comes back when nothing refers to it any more."""
        loan = self._memory[slot.start : slot.end]  # an object of its own, which the tensor's memory refers to
        weakref.finalize(loan, self._unused.append, slot.start).atexit = False
        return slot.layout.place_batch(torch.from_numpy(loan), samples)


class SharedSlots:
    """Slots of a ring in a process that reads."""

    def __init__(self) -> None:
        self._serial = -1
        self._memory: Tensor | None = None

    def room(self, slot: SharedSlot, samples: int) -> LentBatch | None:
        """The slot's memory; None: it cannot be opened here."""
        if slot.serial != self._serial:
            self._serial, self._memory = slot.serial, None
            with suppress(OSError):
                handle = os.open(slot.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    self._memory = torch.frombuffer(mmap.mmap(handle, os.fstat(handle).st_size), dtype=torch.uint8)
                finally:
                    os.close(handle)
        if self._memory is None:
            return None
        return LentBatch(slot.layout.place_batch(self._memory[slot.start : slot.end], samples))
