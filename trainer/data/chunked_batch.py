"""A batch whose samples are read by several threads, straight into its memory."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from torch import Tensor

from .batch_memory import LentBatch, RowLayout
from .batch_reader import Pairs, ReadBatch, SampleBatches

Sample = TypeVar("Sample")


class ChunkedBatch(Generic[Sample]):
    """A batch in the making. What it gives is what `source.read(pairs)` would.

    Args:
        chunk: number of samples that a thread reads in one piece.
        layout: of the rows in `lent`; None: the batch is stacked in new memory.
    """

    def __init__(
        self, source: SampleBatches[Sample], pairs: Pairs, chunk: int, layout: RowLayout | None, lent: LentBatch | None
    ):
        self._source = source
        self._pairs = pairs
        self._chunk = chunk
        self.layout = layout
        """Layout of the batch's rows: once it is read, as they are."""
        self.lent = lent
        starts = range(0, len(pairs), chunk)
        self._parts: list[tuple[Sequence[Sample], list[str]] | None] = [None] * len(starts)
        self._errors: dict[int, BaseException] = {}
        self._fits = lent is not None
        self._left = len(starts)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._result: ReadBatch | None = None

    def calls(self) -> dict[Callable[[], None], int]:
        """What threads have to call, with the number of samples of each."""
        # not kept here: each refers to this batch, whose memory a cycle would hold until the next garbage collection
        starts = range(0, len(self._pairs), self._chunk)
        return {partial(self._read_chunk, n): min(self._chunk, len(self._pairs) - s) for n, s in enumerate(starts)}

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def failed(self) -> bool:
        """Whether `wait` will raise."""
        return bool(self._errors)

    def wait(self) -> ReadBatch:
        """The batch; the error of the first sample that has raised one."""
        self._done.wait()
        if self._errors:
            raise self._errors[min(self._errors)]
        assert self._result is not None
        return self._result

    def _read_chunk(self, number: int) -> None:
        try:
            first = number * self._chunk
            pairs = self._pairs[first : first + self._chunk]
            problems: list[str] = []
            rooms = self._rooms(first, len(pairs))
            read = self._source.reader.samples(pairs, problems, rooms)
            # each is copied while it is in the processor's cache
            samples = [self._place_sample(sample, room) for sample, room in zip(read, rooms, strict=False)]
            if len(samples) != len(pairs):
                self._fits = False
            self._parts[number] = samples, problems
        except BaseException as error:  # raised again where the batch is wanted
            self._errors[number] = error
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._finish()

    def _rooms(self, first: int, count: int) -> Sequence[Tensor | None]:
        """Each sample's part of the batch's memory."""
        if self.lent is None or self.layout is None:
            return [None] * count
        rows = self.layout.rows
        return self.lent.images[first * rows : (first + count) * rows].split(rows)

    def _place_sample(self, sample: Sample, room: Tensor | None) -> Sample:
        """The sample with its images in the batch's memory, if they fit into it."""
        if room is None or self.layout is None:
            return sample
        collate = self._source.collate
        images = collate.images_of(sample)
        if images is room:
            return sample
        if not self.layout.fits(images):
            self._fits = False
            return sample
        room.copy_(images)
        return collate.with_images(sample, room)

    def _finish(self) -> None:
        try:
            if not self._errors:
                self._result = self._join_chunks()
        except BaseException as error:  # images of different sizes
            self._errors[len(self._parts)] = error
        self._parts.clear()
        self._done.set()

    def _join_chunks(self) -> ReadBatch:
        parts = [part for part in self._parts if part is not None]
        samples = [sample for part, _ in parts for sample in part]
        problems = [problem for _, part in parts for problem in part]
        if not samples:
            return ReadBatch(None, problems)
        collate = self._source.collate
        batch = collate(samples, self.lent.images if self._fits and self.lent is not None else None)
        if not self._fits:
            self.layout = RowLayout.of(batch[0], len(collate.images_of(samples[0])))
        return ReadBatch(batch, problems)
