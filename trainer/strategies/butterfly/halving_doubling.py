"""The butterfly: a mean over workers by recursive halving and doubling, with point-to-point sends alone.

Thakur, Rabenseifner and Gropp 2005, Int. J. High Performance Computing Applications 19(1): allreduce of long messages.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from PIL.Image import Image
from torch import Tensor

from ...core.communication.plain_values import all_gather_values
from ...core.traffic import Ledger
from ...core.transfers import Placement, Send
from .picture import Message, exchange_picture

Order = Literal["near_first", "far_first"]
Range = tuple[int, int]
"""First element, and the one after the last."""

_NOTHING: Range = (0, 0)
_KEPT = 200
"""Messages whose times are kept."""


class PairExchange(NamedTuple):
    """Exchange of ranges of one vector with a peer; either range may be empty."""

    peer: int
    sent: Range
    received: Range


class WorkerSchedule(NamedTuple):
    """Exchanges of one worker for a vector: a reduce-scatter, then an all-gather.

    Attributes:
        reduce_scatter: in order; what is received is added.
        own: the range whose sum this worker has after them, and divides by K.
        all_gather: in order; what is received is copied.
    """

    reduce_scatter: list[PairExchange]
    own: Range
    all_gather: list[PairExchange]

    @property
    def sends(self) -> list[tuple[int, int]]:
        """Peer and number of elements of each message."""
        exchanges = [*self.reduce_scatter, *self.all_gather]
        return [(exchange.peer, _length(exchange.sent)) for exchange in exchanges if _length(exchange.sent)]


@dataclass(frozen=True)
class ButterflySchedule:
    """Recursive halving and doubling: the exchanges by which K workers average a vector of N elements.

    Halving: in each of log2 K rounds partners at distance d (d = 1, 2, ..., K/2 for near_first, K/2, ..., 1 for
    far_first) cut the range that they have in common, give one half away and add what they get for the other. Then
    each worker owns the sum of one K-th, divides it by K, and the rounds run backwards, copying. Every element is
    summed by one worker and copied to the others: the result is the same bits everywhere.

    A worker sends 2 (K - 1) / K * N elements in 2 log2 K messages; where K does not divide N the parts are unequal
    and this is the mean over workers. Nothing is padded, and an empty part is not sent.

    K not a power of two: with C the largest power of two below, each of the K - C surplus workers gives its vector to
    a neighbour first (N elements) and gets the result back from it (N). The mean over workers is 2 (K - 1) / K * N
    again; such a neighbour sends (2 (C - 1) / C + 1) N. Where the number of nodes is a power of two the surplus is
    spread evenly over them, so that giving and getting stay inside the node.

    Over n nodes of g workers, both powers of two, all workers together send 2 (n - 1) N elements out of their nodes
    in near_first, and g times as many in far_first: the largest message, N / 2, goes to the nearest or to the farthest.
    """

    placement: Placement
    order: Order

    @property
    def _block(self) -> int:
        """Number of neighbouring workers that share a surplus."""
        workers, each = self.placement.workers, self.placement.workers_per_node
        nodes = self.placement.nodes
        return each if workers == nodes * each and _power_of_two_in(nodes) == nodes else workers

    @cached_property
    def _keeper(self) -> dict[int, int]:
        """Each surplus worker's neighbour."""
        block = self._block
        surplus = block - _power_of_two_in(block)
        starts = range(0, self.placement.workers, block)
        return {start + 2 * pair + 1: start + 2 * pair for start in starts for pair in range(surplus)}

    @cached_property
    def _core(self) -> list[int]:
        """The workers that halve and double; partners differ in one bit of their place in this list."""
        return [rank for rank in range(self.placement.workers) if rank not in self._keeper]

    @cached_property
    def _distances(self) -> list[int]:
        rounds = len(self._core).bit_length() - 1
        near_first = [2**power for power in range(rounds)]
        return near_first if self.order == "near_first" else near_first[::-1]

    def of_worker(self, rank: int, elements: int) -> WorkerSchedule:
        """Exchanges of worker `rank` for a vector of `elements` elements."""
        whole = (0, elements)
        if rank in self._keeper:
            keeper = self._keeper[rank]
            return WorkerSchedule(
                [PairExchange(keeper, whole, _NOTHING)], _NOTHING, [PairExchange(keeper, _NOTHING, whole)]
            )
        guests = [guest for guest, keeper in self._keeper.items() if keeper == rank]
        reduce_scatter = [PairExchange(guest, _NOTHING, whole) for guest in guests]
        all_gather = [PairExchange(guest, whole, _NOTHING) for guest in guests]
        place, mine = self._core.index(rank), whole
        for distance in self._distances:
            middle = (mine[0] + mine[1]) // 2
            halves = [(mine[0], middle), (middle, mine[1])]
            upper = bool(place & distance)
            mine, theirs = halves[upper], halves[not upper]
            peer = self._core[place ^ distance]
            reduce_scatter.append(PairExchange(peer, theirs, mine))
            all_gather.insert(0, PairExchange(peer, mine, theirs))
        return WorkerSchedule(reduce_scatter, mine, all_gather)

    def sent_by_all(self, elements: int) -> tuple[int, int, int]:
        """Elements, those of them that leave their node, and messages, summed over all workers."""
        total = leaving = messages = 0
        for rank in range(self.placement.workers):
            for peer, length in self.of_worker(rank, elements).sends:
                total += length
                messages += 1
                leaving += length * self.placement.apart(rank, peer)
        return total, leaving, messages

    def sends(self, vectors: Sequence[tuple[int, int]], rank: int) -> list[Send]:
        """What worker `rank` sends to average vectors.

        Args:
            vectors: of each, the elements and the bytes of one element.
        """
        return [
            Send(peer, sent * element_bytes)
            for elements, element_bytes in vectors
            for peer, sent in self.of_worker(rank, elements).sends
        ]


def best_order(placement: Placement) -> Order:
    """The order that sends less out of the nodes; near_first where both send the same.

    near_first is best wherever neighbouring ranks share a node: what a pair inside the node has added up need not
    leave it twice. Where none do, ranks are usually numbered switch by switch, and again the near link gets the largest
    message.
    """
    orders: tuple[Order, Order] = ("near_first", "far_first")
    elements = 64 * placement.workers
    return min(orders, key=lambda order: ButterflySchedule(placement, order).sent_by_all(elements)[1])


class ButterflyAllReduce:
    """All-reduce of one worker with the others, by a butterfly.

    Args:
        rank: of this worker in `group`, which holds all workers and is used for nothing else.
        butterfly: the exchanges of all workers.
        group: a process group; gloo, or NCCL, where all is queued on the current stream.
    """

    def __init__(self, rank: int, butterfly: ButterflySchedule, group: Any):
        self.rank = rank
        self.butterfly = butterfly
        self.group = group
        self._schedules: dict[int, WorkerSchedule] = {}
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._messages: deque[Message] = deque(maxlen=_KEPT)
        """The newest ones; none on GPUs, where they are queued."""

    @property
    def peers(self) -> set[int]:
        """Workers that this one exchanges messages with."""
        schedule = self._schedule(self.butterfly.placement.workers)
        return {exchange.peer for exchange in (*schedule.reduce_scatter, *schedule.all_gather)}

    def average(self, vector: Tensor) -> None:
        """The mean over all workers, in place: the same bits everywhere. All workers must call it.

        Args:
            vector: one dimension, contiguous, of the same size and type on every worker.

        Raises:
            RuntimeError: a worker is lost, or the group's timeout has passed.
        """
        schedule = self._schedule(len(vector))
        for exchange in schedule.reduce_scatter:
            received = self._buffer(_length(exchange.received), vector)
            self._exchange(exchange.peer, _part(vector, exchange.sent), received)
            _part(vector, exchange.received).add_(received)
        _part(vector, schedule.own).div_(self.butterfly.placement.workers)
        for exchange in schedule.all_gather:
            self._exchange(exchange.peer, _part(vector, exchange.sent), _part(vector, exchange.received))

    def pictures(self, vectors: int) -> dict[str, Image]:
        """Who exchanged with whom and when, by each worker's clock; none on GPUs. All workers must call it.

        Args:
            vectors: the newest ones that were averaged, as far as their messages are kept.
        """
        schedule = self._schedule(self.butterfly.placement.workers)
        each = len(schedule.reduce_scatter) + len(schedule.all_gather)
        newest = [list(message) for message in list(self._messages)[-vectors * each :]]
        gathered = [[Message(*message) for message in messages] for messages in all_gather_values(newest)]
        return {"butterfly/exchange": exchange_picture(gathered)} if all(gathered) else {}

    def count(self, vector: Tensor, ledger: Ledger) -> None:
        """Enter in the ledger what `average` sends of this vector."""
        for peer, elements in self._schedule(len(vector)).sends:
            ledger.to(peer, elements * vector.element_size())

    def _schedule(self, elements: int) -> WorkerSchedule:
        if elements not in self._schedules:
            self._schedules[elements] = self.butterfly.of_worker(self.rank, elements)
        return self._schedules[elements]

    def _buffer(self, elements: int, like: Tensor) -> Tensor:
        """Receive buffer, kept from one call to the next."""
        buffer = self._buffers.get(like.dtype)
        if buffer is None or len(buffer) < elements:
            buffer = self._buffers[like.dtype] = like.new_empty(elements)
        return buffer[:elements]

    def _exchange(self, peer: int, sent: Tensor, received: Tensor) -> None:
        operations = [
            dist.P2POp(operation, tensor, group=self.group, group_peer=peer)
            for operation, tensor in ((dist.irecv, received), (dist.isend, sent))
            if len(tensor)
        ]
        began = time.time()
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        if operations and not sent.is_cuda:
            self._messages.append(Message(began, time.time(), peer, len(sent) * sent.element_size()))


def _length(elements: Range) -> int:
    return elements[1] - elements[0]


def _part(vector: Tensor, elements: Range) -> Tensor:
    return vector[elements[0] : elements[1]]


def _power_of_two_in(number: int) -> int:
    """The largest power of two that is at most `number`."""
    return 1 << (number.bit_length() - 1)
