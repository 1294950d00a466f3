"""A thread that averages buckets over all workers while the main thread computes."""

import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ...core.traffic import Ledger
from .buckets import Bucket
from .halving_doubling import ButterflyAllReduce

_AGREES_OFTEN = 8
_AGREES_EVERY = 16


class CommThread:
    """Averages the pieces of all buckets, step after step, in an order that is the same on every worker.

    For CPUs, where an exchange blocks.

    In the order of `buckets` a piece is exchanged as soon as its gradients exist. Where updates are put off that alone
    would hide nothing behind the next forward: the layer that is needed first would come last. So the first `front`
    pieces go in the order in which they become ready, and the rest, for which backward left no time, in the order in
    which they are needed: the other way round. The first worker sees how many pieces had begun when backward ended, and
    tells the others (8 bytes, in the first steps and then in every sixteenth). The order changes no result.

    Args:
        buckets: in the order in which their gradients are expected.
        exchange: this worker's end of the butterfly.
        ledger: seconds spent in `wait` are entered.
        needed_backwards: updates are put off until the next forward, which needs the last bucket first.
    """

    def __init__(self, buckets: Sequence[Bucket], exchange: ButterflyAllReduce, ledger: Ledger, needed_backwards: bool):
        self._pieces = [(bucket, piece) for bucket in buckets for piece in bucket.pieces]
        self._buckets = buckets
        self._exchange = exchange
        self._ledger = ledger
        self._needed_backwards = needed_backwards
        self.front = len(self._pieces)
        """So many pieces go in the order in which they become ready."""
        self._last: Bucket | None = None
        """The bucket whose gradients came last in this step; None until they have."""
        self._steps = 0
        self._closed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def hand_over(self, bucket: Bucket, last: bool) -> None:
        """A bucket has all its gradients; `last`: and so has every other."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="butterfly", daemon=True)
            self._thread.start()
        for piece in bucket.pieces:
            # counted here, not when it is sent: the loop compares what was sent between two moments of this thread
            self._exchange.count(piece, self._ledger)
        if last:
            self._last = bucket
        bucket.ready.set()

    def wait(self, bucket: Bucket) -> None:
        """Returns when the bucket holds averages.

        Raises:
            RuntimeError: the exchange of this or an earlier bucket failed.
        """
        before = self._ledger.now()
        if self._error is None:
            bucket.done.wait()
        if self._error is not None:
            raise RuntimeError(f"strategy=butterfly: an exchange of gradients failed: {self._error}") from self._error
        bucket.done.clear()
        self._ledger.waited(before)

    def agree(self) -> None:
        """Between two steps: the thread has agreed by itself."""

    def close(self) -> None:
        """End the thread, if it is not in an exchange."""
        self._closed = True
        for bucket in self._buckets:
            bucket.ready.set()

    def _run(self) -> None:
        try:
            while self._one_step():
                pass
        except BaseException as error:
            self._error = error
            for bucket in self._buckets:
                bucket.done.set()

    def _one_step(self) -> bool:
        """All pieces once. False when the thread is to end."""
        order = [*self._pieces[: self.front], *reversed(self._pieces[self.front :])]
        begun_in_backward: int | None = None
        for number, (bucket, piece) in enumerate(order):
            had_to_wait = self._gradients_of(bucket)
            if self._closed:
                return False
            if begun_in_backward is None and self._last is not None:
                begun_in_backward = self._next_front(number, had_to_wait)
            self._exchange.average(piece)
            if number == len(order) - 1:
                assert begun_in_backward is not None
                # before the last piece is marked done: a caller that waits for it then finds this thread idle
                self._end_step(begun_in_backward)
            self._finish_piece(bucket)
        return True

    def _gradients_of(self, bucket: Bucket) -> bool:
        """Wait for them. Whether that was necessary."""
        there = bucket.ready.is_set()
        bucket.ready.wait()
        return not there

    def _next_front(self, begun: int, had_to_wait: bool) -> int:
        """Pieces that backward has time for, given how many had begun at its end."""
        if not had_to_wait:
            return begun
        return min(self.front + (begun == self.front), len(self._pieces))  # there was time for one more

    def _end_step(self, front: int) -> None:
        """Agree on the order of the next steps: the one that suits the first worker."""
        self._last = None
        self._steps += 1
        if not self._needed_backwards or (self._steps > _AGREES_OFTEN and self._steps % _AGREES_EVERY):
            return
        agreed = torch.tensor([front])
        dist.broadcast(agreed, group=self._exchange.group, group_src=0)
        self.front = int(agreed)

    def _finish_piece(self, bucket: Bucket) -> None:
        bucket.pieces_left -= 1
        if bucket.pieces_left:
            return
        bucket.pieces_left = len(bucket.pieces)
        bucket.ready.clear()
        bucket.done.set()
