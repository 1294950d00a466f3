"""Batches in their order, read ahead by processes that live as long as the run."""

import atexit
import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader

from ..base.rng import generator
from ..base.signals import IgnoreStopSignals
from ..core.torch_compat import begin_reading, end_readers
from .batch_memory import RowLayout
from .batch_reader import BatchSource, Pairs, ReadBatch, SampleBatches
from .chunked_batch import ChunkedBatch
from .shared_ring import SharedRing, SharedSlot, SharedSlots
from .threaded_batches import LoadedBatch

Kind = tuple[str, int]
"""Split and epoch."""
_CHUNK = 4
"""Samples that are read before they are put into the batch, while they are in the processor's cache."""


class ProcessBatches:
    """Reads batches by processes, through shared memory.

    Training and evaluation have processes of their own, since an evaluation may come between two steps of an epoch.

    Args:
        source_of: makes what reads the batches of a kind, in each process.
        processes: number of them.
        prefetch: batches that each reads ahead.
        seed: of the run.
        pin_memory: into page-locked memory.
    """

    def __init__(
        self, source_of: Callable[[Kind], BatchSource], processes: int, prefetch: int, seed: int, pin_memory: bool
    ):
        self._source_of = source_of
        self._processes = processes
        self._prefetch = max(1, prefetch)
        self._seed = seed
        self._pin_memory = pin_memory
        self._loaders: dict[bool, tuple[DataLoader[Any], _Wanted]] = {}
        closed_at_exit.add(self)

    def read(self, kind: Kind, wanted: Iterable[Pairs]) -> Iterator[LoadedBatch]:
        """The batches."""
        training = kind[0] == "train"
        if training not in self._loaders:
            self._loaders[training] = self._loader()
        loader, asked = self._loaders[training]
        asked.kind, asked.pairs = kind, wanted
        for sent in begin_reading(loader):
            batch, problems = asked.receive_batch(sent)
            yield LoadedBatch.of(batch, problems)

    def close(self) -> None:
        """End the processes."""
        for loader, _ in self._loaders.values():
            end_readers(loader)
        self._loaders.clear()

    def _loader(self) -> "tuple[DataLoader[Any], _Wanted]":
        # a slot for each batch that is read ahead, for the one in training and one more; page-locked memory is torch's
        asked = _Wanted(0 if self._pin_memory else self._prefetch * self._processes + 2)
        loader: DataLoader[Any] = DataLoader(
            _Reads(self._source_of),  # pyright: ignore[reportArgumentType]  # torch needs only __getitems__
            batch_sampler=asked,  # pyright: ignore[reportArgumentType]  # a kind and pairs, not plain indices
            num_workers=self._processes,
            collate_fn=_as_it_is,  # pyright: ignore[reportArgumentType]  # what __getitems__ gives
            # own generator: creating a loader must not advance the run's random numbers
            generator=generator(self._seed),
            pin_memory=self._pin_memory,
            worker_init_fn=IgnoreStopSignals(_keep_inherited),
            prefetch_factor=self._prefetch,
            persistent_workers=True,
        )
        return loader, asked


def _keep_inherited(number: int) -> None:
    """Never collect what was inherited by the fork: of a process group or a store, whose threads are not here, the end
    would crash this process."""
    gc.freeze()


class SentBatch(NamedTuple):
    """A batch as a process sends it."""

    read: ReadBatch
    """Without its images, if they are in a slot."""
    in_slot: bool
    layout: RowLayout | None
    """Layout of the images, if later ones may be put into slots."""


class _Wanted:
    """The batches that the loader is asked for, in place of a sampler, and the slots for their images.

    The first batch of a layout comes as torch sends it, and so does one for which no slot is free, because the loop
    keeps batches.

    Args:
        slots: number of them; 0: none is used.
    """

    def __init__(self, slots: int) -> None:
        self.kind: Kind = ("", 0)
        self.pairs: Iterable[Pairs] = ()
        self._slots = slots
        self._ring: SharedRing | None = None
        self._asked: deque[tuple[int, SharedRing | None, SharedSlot | None]] = deque()

    def __iter__(self) -> Iterator[tuple[Kind, Pairs, SharedSlot | None]]:
        kind = self.kind
        for _, ring, slot in self._asked:  # of an epoch that was left: torch has waited for what was being read
            if ring is not None and slot is not None:
                ring.give_back(slot)
        self._asked.clear()
        for pairs in self.pairs:
            ring = self._ring
            slot = None if ring is None else ring.lend(len(pairs))
            self._asked.append((len(pairs), ring, slot))
            yield kind, pairs, slot

    def receive_batch(self, sent: SentBatch) -> ReadBatch:
        """The next batch, with its images."""
        samples, ring, slot = self._asked.popleft()
        if ring is not None and slot is not None:
            if sent.in_slot:
                images = ring.images(slot, samples)
                return sent.read._replace(batch=(images, *sent.read.batch[1:]))
            ring.give_back(slot)
        if sent.layout is not None:
            self._prepare(sent.layout, samples)
        return sent.read

    def _prepare(self, layout: RowLayout, samples: int) -> None:
        """Have slots for later batches of this form."""
        if self._slots and (self._ring is None or not self._ring.fits(layout, samples)):
            with suppress(OSError):  # then torch goes on sending them
                self._ring = SharedRing(layout, samples, self._slots)


class _Reads:
    """A process's side."""

    def __init__(self, source_of: Callable[[Kind], BatchSource]):
        self._source_of = source_of
        self._kind: Kind | None = None
        self._source: BatchSource | None = None
        self._shared = SharedSlots()

    def __getitems__(self, wanted: tuple[Kind, Pairs, SharedSlot | None]) -> SentBatch:
        kind, pairs, slot = wanted
        if self._source is None or kind != self._kind:
            self._kind, self._source = kind, self._source_of(kind)
        if not isinstance(self._source, SampleBatches):
            return SentBatch(self._source.read(pairs), False, None)
        room = None if slot is None else self._shared.room(slot, len(pairs))
        layout = None if slot is None else slot.layout
        batch = ChunkedBatch(self._source, pairs, _CHUNK, layout, room)
        for read_chunk in batch.calls():
            read_chunk()
        read = batch.wait()
        if room is None or read.batch is None or read.batch[0].data_ptr() != room.images.data_ptr():
            return SentBatch(read, False, batch.layout)
        return SentBatch(read._replace(batch=(None, *read.batch[1:])), True, batch.layout)


def _as_it_is(batch: SentBatch) -> SentBatch:
    return batch


class _HasReaders(Protocol):
    def close(self) -> None: ...


closed_at_exit: "weakref.WeakSet[_HasReaders]" = weakref.WeakSet()
"""What has reader processes, which end by themselves at the exit, before multiprocessing kills them."""


@atexit.register
def _close_all() -> None:
    for readers in list(closed_at_exit):
        readers.close()
