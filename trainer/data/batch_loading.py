"""Who reads the batches of a run: the loop itself, threads, or processes."""

from collections.abc import Callable, Iterable, Iterator

import torch

from ..base.device_copy import pin_batch
from ..config.schema import DatasetConfig
from ..core import threads
from .batch_memory import BatchMemory, RowLayout
from .batch_reader import BatchSource, Pairs, ReadBatch, SampleBatches
from .chunked_batch import ChunkedBatch
from .process_batches import Kind, ProcessBatches
from .threaded_batches import LoadedBatch, ThreadedBatches

_HERE = 2
"""Unused batches whose memory is kept where the loop itself reads: one is read while another is trained."""


class BatchLoading:
    """Reads batches as `dataset.threads`, `dataset.prefetch` and `dataset.num_workers` say.

    Threads and processes begin with the first batch, and end with `close`.

    Args:
        source_of: makes what reads the batches of a split and epoch.
        thread_safe: whether several threads may read at once.
        seed: of the run.
        pin_memory: into page-locked memory.
        device: of the run; None: unknown.
    """

    def __init__(
        self,
        settings: DatasetConfig,
        source_of: Callable[[Kind], BatchSource],
        thread_safe: bool,
        seed: int,
        pin_memory: bool,
        device: torch.device | None,
    ):
        self._settings = settings
        self._source_of = source_of
        self._thread_safe = thread_safe
        self._seed = seed
        self._pin_memory = pin_memory
        self._device = device if device is not None and device.type == "cuda" else None
        self._threads: ThreadedBatches | None = None
        self._processes: ProcessBatches | None = None
        self._memory = BatchMemory(_HERE)
        self._layouts: dict[str, RowLayout] = {}

    def read(self, kind: Kind, wanted: Iterable[Pairs], reads_ahead: bool = True) -> Iterator[LoadedBatch]:
        """Batches of (index, key) pairs, in their order.

        Args:
            reads_ahead: whether a batch may be asked for before those before it are trained.
        """
        if self._settings.num_workers > 0 and reads_ahead:
            return self._by_processes().read(kind, wanted)
        source = self._source_of(kind)
        if isinstance(source, SampleBatches) and reads_by_threads(self._settings, self._thread_safe):
            return self._by_threads().read(kind[0], source, wanted, reads_ahead)
        return self._here(kind[0], source, wanted)

    def close(self) -> None:
        """End threads and processes."""
        for readers in (self._threads, self._processes):
            if readers is not None:
                readers.close()
        self._threads = self._processes = None

    def _by_threads(self) -> ThreadedBatches:
        if self._threads is None:
            given = None if self._settings.threads == "auto" else self._settings.threads
            self._threads = ThreadedBatches(given, threads.cores(), self._settings.prefetch, self._device)
        return self._threads

    def _by_processes(self) -> ProcessBatches:
        if self._processes is None:
            self._processes = ProcessBatches(
                self._source_of, self._settings.num_workers, self._settings.prefetch, self._seed, self._pin_memory
            )
        return self._processes

    def _here(self, split: str, source: BatchSource, wanted: Iterable[Pairs]) -> Iterator[LoadedBatch]:
        for pairs in wanted:
            batch, problems = self._read_here(split, source, pairs)
            yield LoadedBatch.of(pin_batch(batch) if self._pin_memory else batch, problems)

    def _read_here(self, split: str, source: BatchSource, pairs: Pairs) -> ReadBatch:
        if not isinstance(source, SampleBatches):
            return source.read(pairs)
        layout = self._layouts.get(split)
        lent = None if layout is None else self._memory.lend(layout, len(pairs))
        batch = ChunkedBatch(source, pairs, len(pairs), layout, lent)
        with source.host_state():
            for read_chunk in batch.calls():
                read_chunk()
        if not batch.failed and batch.layout is not None:
            self._layouts[split] = batch.layout
        return batch.wait()


def reads_by_threads(settings: DatasetConfig, thread_safe: bool) -> bool:
    """Whether threads read. Of a dataset that does not say that they may, only where the user says so."""
    wanted = thread_safe if settings.threads == "auto" else settings.threads > 0
    return wanted and settings.num_workers == 0
