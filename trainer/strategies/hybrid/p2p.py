"""Messages between workers that hold parts of one layer: rings and direct swaps of unequal sizes, counted."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.traffic import Ledger
from ..connect import connect

Message = tuple[int, Tensor]
"""The other worker, and what it gets or sends."""


class PendingTransfer:
    """Messages on their way. What is sent stays alive with them."""

    def __init__(self, works: Sequence[Any], tensors: Sequence[Tensor], ledger: Ledger):
        self._works = works
        self._tensors = tensors
        self._ledger = ledger

    def wait(self) -> None:
        """Return when all have arrived; this time is what the ledger calls exposed."""
        began = self._ledger.now()
        for work in self._works:
            work.wait()
        self._works = self._tensors = ()
        self._ledger.waited(began)


class P2PChannel:
    """Sends and receives in an order that all workers keep, so that no message needs a name.

    A ring passes pieces on to the next worker, K - 1 times: of each node one link leads out, and every worker sends all
    pieces but one, whatever their sizes. torch's own collectives want equal sizes, and gloo's reduce_scatter is an
    all-reduce of twice the bytes.
    """

    def __init__(self, ledger: Ledger, group: Any = None, device: torch.device | None = None):
        """
        Args:
            group: of all workers; None: the default one. Messages of two groups do not wait for each other.
            device: connections between its workers are opened at once; None: with their first messages.
        """
        self.ledger = ledger
        self.rank = ledger.rank
        self.workers = ledger.placement.workers
        self._group = group
        if device is not None:
            connect(device, group, self.others)

    @property
    def others(self) -> list[int]:
        return [worker for worker in range(self.workers) if worker != self.rank]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> PendingTransfer:
        """Begin to send, and to receive into, contiguous tensors; empty ones are left out on both sides."""
        sends = [(to, tensor) for to, tensor in sends if tensor.numel()]
        receives = [(of, tensor) for of, tensor in receives if tensor.numel()]
        for to, tensor in sends:
            self.ledger.to(to, tensor.nbytes)
        posted = [(dist.isend, *message) for message in sends] + [(dist.irecv, *message) for message in receives]
        if posted and dist.get_backend(self._group) == "nccl":  # its sends and receives must be posted in one group
            works = dist.batch_isend_irecv([dist.P2POp(op, t, peer, self._group) for op, peer, t in posted])
        else:
            works = [op(tensor, peer, self._group) for op, peer, tensor in posted]
        return PendingTransfer(works, [tensor for _, tensor in (*sends, *receives)], self.ledger)

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive, and wait for both."""
        self.start(sends, receives).wait()

    def gather(self, own: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Every worker's piece, in the order of ranks; `shapes` are theirs."""
        pieces = [own.contiguous() if w == self.rank else own.new_empty(*shape) for w, shape in enumerate(shapes)]
        following, previous = self._neighbours()
        for step in range(self.workers - 1):
            onward, coming = pieces[self.rank - step], pieces[(self.rank - step - 1) % self.workers]
            self.swap([(following, onward)], [(previous, coming)])
        return pieces

    def sum_scattered(self, pieces: Sequence[Tensor]) -> Tensor:
        """The sum over all workers of their piece number `rank`: what a reduce-scatter gives."""
        summed = [piece.contiguous() for piece in pieces]
        following, previous = self._neighbours()
        for step in range(self.workers - 1):
            place = (self.rank - step - 2) % self.workers
            coming = torch.empty_like(summed[place])
            self.swap([(following, summed[(self.rank - step - 1) % self.workers])], [(previous, coming)])
            summed[place] = coming.add_(summed[place])
        return summed[self.rank]

    def _neighbours(self) -> tuple[int, int]:
        return (self.rank + 1) % self.workers, (self.rank - 1) % self.workers
