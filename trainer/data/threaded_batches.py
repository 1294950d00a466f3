"""Batches in their order, read ahead by threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batch_memory import BatchMemory, PinnedMemory, RowLayout
from .batch_reader import Pairs, SampleBatches
from .chunked_batch import ChunkedBatch
from .device_copies import CopiedBatch, DeviceCopies
from .reading_threads import ReadingThreads
from .thread_count import ThreadCount

_CHUNKS = 4
"""Chunks of a batch for each thread: the last to end keeps the others waiting for a quarter of its time at most."""


class LoadedBatch(NamedTuple):
    """A batch as the loop takes it."""

    batch: Any
    """The batch, on the device if it was copied there ahead; None if every sample was unreadable."""
    keys: Tensor | None
    """`ViewKeys.keys` of the batch, in host memory; None: the batch has none."""
    problems: list[str]

    @classmethod
    def of(cls, batch: Any, problems: list[str], moved: Any = None) -> "LoadedBatch":
        """
        Args:
            moved: the batch on its device.
        """
        keys = batch[2].keys if batch is not None and len(batch) == 3 else None
        return cls(batch if moved is None else moved, keys, problems)


class ThreadedBatches:
    """Reads batches by threads, some batches ahead of the loop, and copies each to the GPU ahead of its use.

    Args:
        threads: number of threads; None: as many as are fastest, up to `most`.
        most: number of cores.
        prefetch: batches that are read ahead.
        device: where batches are copied ahead; None: they stay in host memory.
    """

    def __init__(self, threads: int | None, most: int, prefetch: int, device: torch.device | None):
        self._threads = ReadingThreads(most if threads is None else threads)
        self.count = ThreadCount(self._threads) if threads is None else None
        self._most = self._threads.limit
        self._prefetch = prefetch
        self._copies = None if device is None else DeviceCopies(device)
        kept = prefetch + 2  # the one in training, and one whose copy is under way
        self._memory = BatchMemory(kept) if device is None else PinnedMemory(kept)
        self._layouts: dict[str, RowLayout] = {}

    def read(
        self, split: str, source: SampleBatches[Any], wanted: Iterable[Pairs], reads_ahead: bool = True
    ) -> Iterator[LoadedBatch]:
        """The batches.

        Args:
            split: its batches have rows of one shape, usually: memory for the next is taken by that of the last.
            reads_ahead: whether a batch may be asked for before those before it are trained.
        """
        reading: deque[_Reading] = deque()
        ahead = self._prefetch if reads_ahead else 0
        pairs = iter(wanted)
        try:
            while True:
                while len(reading) <= ahead and (batch := next(pairs, None)) is not None:
                    reading.append(self._begin(split, source, batch))
                if not reading:
                    return
                yield self._take_batch(split, reading)
                if self.count is not None:
                    self.count.after_batch()
        finally:
            for each in reading:
                self._threads.remove(each.calls)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _begin(self, split: str, source: SampleBatches[Any], pairs: Pairs) -> "_Reading":
        layout = self._layouts.get(split)
        lent = None if layout is None else self._memory.lend(layout, len(pairs))
        chunk = max(1, len(pairs) // (_CHUNKS * self._most))
        batch = ChunkedBatch(source, pairs, chunk, layout, lent)
        calls = batch.calls()
        for call, samples in calls.items():
            self._threads.add(call, samples)
        return _Reading(batch, set(calls))

    def _take_batch(self, split: str, reading: "deque[_Reading]") -> LoadedBatch:
        first = reading.popleft()
        batch, problems = first.batch.wait()
        if first.batch.layout is not None:
            self._layouts[split] = first.batch.layout
        if self._copies is None or batch is None:
            return LoadedBatch.of(batch, problems)
        loaded = LoadedBatch.of(batch, problems, self._copies.end(self._queue_copy(first, self._copies)))
        if reading and reading[0].batch.done and not reading[0].batch.failed:
            self._queue_copy(reading[0], self._copies)
        return loaded

    def _queue_copy(self, reading: "_Reading", copies: DeviceCopies) -> CopiedBatch:
        """Queue the copy of a batch that is read, once, and give its memory back."""
        if reading.copy is None:
            reading.copy = copies.begin(reading.batch.wait().batch)
            if reading.batch.lent is not None:
                self._memory.give_back(reading.batch.lent, reading.copy.copied)
        return reading.copy


@dataclass
class _Reading:
    batch: ChunkedBatch[Any]
    calls: set[Callable[[], None]]
    copy: CopiedBatch | None = None
