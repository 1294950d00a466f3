"""A CUDA stream on which buckets are averaged over all workers while the device computes."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...base.device_copy import numbers_on_device
from ...core.traffic import Ledger
from .buckets import Bucket
from .halving_doubling import ButterflyAllReduce

_MEASURED = 2
"""Number of the step after an agreement that is measured: before the first the device has stood still."""


class CommStream:
    """Averages the pieces of all buckets as CommThread does, in the same order, for devices that take work in a queue.

    There is no thread: what a bucket needs is queued when it is handed over, and the host waits for nothing. Streams
    wait for each other's events. Backward's other collectives (sync_batchnorm) are queued by the same thread, so that
    communicators get their work in one order, the same on every worker; NCCL deadlocks otherwise.

    Args:
        buckets: in the order in which their gradients are expected.
        exchange: this worker's end of the butterfly.
        ledger: time for which the computing stream waits is entered.
        needed_backwards: updates are put off until the next forward, which needs the last bucket first.
    """

    def __init__(self, buckets: Sequence[Bucket], exchange: ButterflyAllReduce, ledger: Ledger, needed_backwards: bool):
        self._buckets = buckets
        self._pieces = [(bucket, piece) for bucket in buckets for piece in bucket.pieces]
        self._exchange = exchange
        self._ledger = ledger
        self._needed_backwards = needed_backwards
        self._device = buckets[0].flat.device
        self._stream = torch.cuda.Stream(self._device, priority=-1)
        for bucket in buckets:
            bucket.flat.record_stream(self._stream)
        self.front = len(self._pieces)
        """Number of pieces that go in the order in which they become ready; the rest goes the other way round."""
        self._order = self._pieces
        self._queued = 0
        """Pieces of this step."""
        self._ready: set[int] = set()
        self._steps = 0
        """Since the last agreement."""
        self._origin: Any = None
        """Events of the measured step: its first bucket's gradients are there."""
        self._backward_ended: Any = None
        """All gradients are."""
        self._began: list[Any] = []
        """The exchange of each piece begins, in their order."""

    def hand_over(self, bucket: Bucket, last: bool) -> None:
        """A bucket has all its gradients; `last`: and so has every other."""
        for piece in bucket.pieces:
            self._exchange.count(piece, self._ledger)
        if not self._queued and not self._ready:
            self._begin_step()
        measured = self._measures
        bucket.computed = torch.cuda.Event(enable_timing=measured)
        bucket.computed.record(torch.cuda.current_stream(self._device))
        if measured and self._origin is None:
            self._origin = bucket.computed
        if measured and last:
            self._backward_ended = bucket.computed
        self._ready.add(id(bucket))
        with torch.cuda.stream(self._stream):
            while self._queued < len(self._order) and id(self._order[self._queued][0]) in self._ready:
                self._queue(*self._order[self._queued])
        if self._queued == len(self._order):
            self._queued = 0
            self._ready.clear()

    def wait(self, bucket: Bucket) -> None:
        """What is queued from here on finds averages in the bucket."""
        assert bucket.averaged is not None
        began = self._ledger.now()
        torch.cuda.current_stream(self._device).wait_event(bucket.averaged)
        self._ledger.waited(began)

    def agree(self) -> None:
        """Between two steps: adapt the order to the step that was measured on the first worker. Collective.

        The host waits here, for 8 bytes: to be called where it waits anyway. The order changes no result.
        """
        if not self._needed_backwards or self._steps < _MEASURED:
            return
        agreed = numbers_on_device([self._next_front()], self._device)
        dist.broadcast(agreed, 0)
        self.front = int(agreed)
        self._steps, self._origin, self._began = 0, None, []

    def close(self) -> None:
        """Nothing runs."""

    @property
    def _measures(self) -> bool:
        return self._needed_backwards and self._steps == _MEASURED

    def _begin_step(self) -> None:
        self._steps += 1
        self._order = [*self._pieces[: self.front], *reversed(self._pieces[self.front :])]

    def _queue(self, bucket: Bucket, piece: torch.Tensor) -> None:
        self._stream.wait_event(bucket.computed)
        if self._measures:
            self._began.append(self._stream.record_event(torch.cuda.Event(enable_timing=True)))
        self._exchange.average(piece)
        self._queued += 1
        bucket.pieces_left -= 1
        if not bucket.pieces_left:
            bucket.pieces_left = len(bucket.pieces)
            bucket.averaged = self._stream.record_event()

    def _next_front(self) -> int:
        """Pieces that backward had time for in the measured step."""
        if not self._began or not self._began[-1].query():
            return self.front
        end = self._origin.elapsed_time(self._backward_ended)
        begun = sum(self._origin.elapsed_time(event) < end for event in self._began)
        return min(begun + (begun == self.front), len(self._pieces))  # there was time for one more
