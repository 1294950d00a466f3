"""Reading of blocks of samples into the system's page cache, a buffer ahead of the training."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from ...core import declarations
from ..abilities import class_name
from .sample_order import SampleOrder


class _Block(NamedTuple):
    samples: range
    position: int
    """Samples of the epoch before it in the order of reading."""
    end: int
    """Samples of the epoch up to the end of its buffer."""


class ReadAhead:
    """Asks the system for the blocks of an epoch, in their order, a buffer's samples before their use.

    So a disk reads each block as a whole, and the samples of a batch, in random order, come out of memory, which holds
    about two buffers. Nothing is waited for, and what is read does not depend on it.

    Args:
        read_ahead: asks for the samples [first, end) of the training set.
        epochs: of the training: near the end of one, the blocks of the next are asked for.
    """

    def __init__(self, order: SampleOrder, read_ahead: Callable[[int, int], None], epochs: int):
        self._order = order
        self._read_ahead = read_ahead
        self._epochs = epochs if order.partitions == 1 else 0  # the next partition may be on another worker
        self._left: dict[int, Iterator[_Block]] = {}
        self._next: dict[int, _Block | None] = {}

    def reach(self, epoch: int, position: int, end: int) -> None:
        """Ask for the samples to be read ahead; to be called before a batch is read.

        Args:
            position: samples of the epoch before it.
            end: samples of the epoch that this worker trains, or is near to.
        """
        for old in [number for number in self._left if number < epoch]:
            del self._left[old], self._next[old]
        self._ask(epoch, position, end)
        if epoch + 1 < self._epochs:
            self._ask(epoch + 1, position - self._order.samples, self._order.samples)

    def _ask(self, epoch: int, position: int, end: int) -> None:
        blocks = self._order.blocks
        assert blocks is not None
        until = min(end, position + self._order.batch_size + blocks.samples * blocks.buffer)
        if until <= 0:
            return
        if epoch not in self._left:
            self._left[epoch] = self._blocks(epoch)
            self._next[epoch] = next(self._left[epoch], None)
        while (block := self._next[epoch]) is not None and block.position < until:
            if block.end > position:  # a resumed run is beyond the buffers before
                self._read_ahead(block.samples.start, block.samples.stop)
            self._next[epoch] = next(self._left[epoch], None)

    def _blocks(self, epoch: int) -> Iterator[_Block]:
        first = 0
        for buffer in self._order.buffers(epoch):
            ends = list(accumulate(map(len, buffer), initial=first))
            for block, position in zip(buffer, ends[:-1], strict=True):
                yield _Block(block, position, ends[-1])
            first = ends[-1]


def reader_ahead(ahead: ReadAhead | None, epoch: int, batches: Sequence[Tensor]) -> Callable[[int], None]:
    """Function to be called with the number of each batch before it is read: it asks for what is to be read ahead."""
    if ahead is None:
        return lambda number: None
    positions = list(accumulate(map(len, batches), initial=0))
    return lambda number: ahead.reach(epoch, positions[number], positions[-1])


def read_ahead_of(dataset: Any, order: SampleOrder, epochs: int) -> ReadAhead | None:
    """What reads ahead for an order of blocks; None without blocks.

    Raises:
        ValueError: the samples of the dataset do not lie in large files, one behind the other.
    """
    if order.blocks is None:
        return None
    read_ahead = declarations.of_dataset(dataset).read_ahead
    if read_ahead is None:
        raise ValueError(
            "dataset.shuffling=blocks is for samples that lie one behind the other in large files (dataset=shards), "
            f"and {class_name(dataset)} has no read_ahead: dataset.shuffling=global"
        )
    return ReadAhead(order, read_ahead, epochs)
