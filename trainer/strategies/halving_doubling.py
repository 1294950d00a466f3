"""The butterfly: a mean over workers by recursive halving and doubling, with point-to-point sends alone.

Thakur, Rabenseifner and Gropp 2005, Int. J. High Performance Computing Applications 19(1): allreduce of long messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .ledger import Ledger, Placement

Order = Literal["near_first", "far_first"]
Range = tuple[int, int]
"""First element, and the one after the last."""

_NOTHING: Range = (0, 0)


class Meeting(NamedTuple):
    """Two workers exchange ranges of the same vector; either range may be empty."""

    peer: int
    sent: Range
    received: Range


class Course(NamedTuple):
    """What one worker does with a vector: meetings that add up, its own part divided, meetings that copy."""

    gathering: list[Meeting]
    own: Range
    spreading: list[Meeting]

    @property
    def sends(self) -> list[tuple[int, int]]:
        """Peer and number of elements of each message."""
        met = [*self.gathering, *self.spreading]
        return [(meeting.peer, _length(meeting.sent)) for meeting in met if _length(meeting.sent)]


@dataclass(frozen=True)
class Butterfly:
    """Who meets whom when K workers average a vector of N elements.

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
        """So many neighbouring workers share a surplus among them."""
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

    def course(self, rank: int, elements: int) -> Course:
        """What worker `rank` does with a vector of so many elements."""
        whole = (0, elements)
        if rank in self._keeper:
            keeper = self._keeper[rank]
            return Course([Meeting(keeper, whole, _NOTHING)], _NOTHING, [Meeting(keeper, _NOTHING, whole)])
        guests = [guest for guest, keeper in self._keeper.items() if keeper == rank]
        gathering = [Meeting(guest, _NOTHING, whole) for guest in guests]
        spreading = [Meeting(guest, whole, _NOTHING) for guest in guests]
        place, mine = self._core.index(rank), whole
        for distance in self._distances:
            middle = (mine[0] + mine[1]) // 2
            halves = [(mine[0], middle), (middle, mine[1])]
            upper = bool(place & distance)
            mine, theirs = halves[upper], halves[not upper]
            peer = self._core[place ^ distance]
            gathering.append(Meeting(peer, theirs, mine))
            spreading.insert(0, Meeting(peer, mine, theirs))
        return Course(gathering, mine, spreading)

    def sent_by_all(self, elements: int) -> tuple[int, int, int]:
        """Elements, those of them that leave their node, and messages, summed over all workers."""
        total = leaving = messages = 0
        for rank in range(self.placement.workers):
            for peer, length in self.course(rank, elements).sends:
                total += length
                messages += 1
                leaving += length * self.placement.apart(rank, peer)
        return total, leaving, messages

    def traffic(self, sizes: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
        """Bytes, bytes that leave the node, and messages that a worker sends: the mean over all workers.

        Args:
            sizes: of each vector that is averaged, the elements and the bytes of one element.
        """
        all_of_them = [(self.sent_by_all(elements), element_bytes) for elements, element_bytes in sizes]
        workers = self.placement.workers
        return (
            sum(sent * element_bytes for (sent, _, _), element_bytes in all_of_them) / workers,
            sum(leaving * element_bytes for (_, leaving, _), element_bytes in all_of_them) / workers,
            sum(messages for (_, _, messages), _ in all_of_them) / workers,
        )


def best_order(placement: Placement) -> Order:
    """The order that sends less out of the nodes; near_first where both send the same.

    near_first is best wherever neighbouring ranks share a node: what a pair inside the node has added up need not
    leave it twice. Where none do, ranks are usually numbered switch by switch, and again the near link gets the largest
    message.
    """
    orders: tuple[Order, Order] = ("near_first", "far_first")
    elements = 64 * placement.workers
    return min(orders, key=lambda order: Butterfly(placement, order).sent_by_all(elements)[1])


class Exchange:
    """One worker's end of a butterfly.

    Args:
        rank: of this worker in `group`, which holds all workers and nothing else speaks on.
        butterfly: who meets whom.
        group: a process group; gloo, or NCCL, where all is queued on the current stream.
    """

    def __init__(self, rank: int, butterfly: Butterfly, group: Any):
        self.rank = rank
        self.butterfly = butterfly
        self.group = group
        self._courses: dict[int, Course] = {}
        self._room: dict[torch.dtype, Tensor] = {}

    def average(self, vector: Tensor) -> None:
        """The mean over all workers, in place: the same bits everywhere. All workers must call it.

        Args:
            vector: one dimension, contiguous, of the same size and type on every worker.

        Raises:
            RuntimeError: a worker is gone, or the group's timeout has passed.
        """
        course = self._course(len(vector))
        for meeting in course.gathering:
            received = self._room_for(_length(meeting.received), vector)
            self._meet(meeting.peer, _part(vector, meeting.sent), received)
            _part(vector, meeting.received).add_(received)
        _part(vector, course.own).div_(self.butterfly.placement.workers)
        for meeting in course.spreading:
            self._meet(meeting.peer, _part(vector, meeting.sent), _part(vector, meeting.received))

    def count(self, vector: Tensor, ledger: Ledger) -> None:
        """Enter in the ledger what `average` sends of this vector."""
        for peer, elements in self._course(len(vector)).sends:
            ledger.to(peer, elements * vector.element_size())

    def _course(self, elements: int) -> Course:
        if elements not in self._courses:
            self._courses[elements] = self.butterfly.course(self.rank, elements)
        return self._courses[elements]

    def _room_for(self, elements: int, like: Tensor) -> Tensor:
        """Where to receive, kept from one time to the next."""
        room = self._room.get(like.dtype)
        if room is None or len(room) < elements:
            room = self._room[like.dtype] = like.new_empty(elements)
        return room[:elements]

    def _meet(self, peer: int, sent: Tensor, received: Tensor) -> None:
        operations = [
            dist.P2POp(operation, tensor, group=self.group, group_peer=peer)
            for operation, tensor in ((dist.irecv, received), (dist.isend, sent))
            if len(tensor)
        ]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()


def _length(elements: Range) -> int:
    return elements[1] - elements[0]


def _part(vector: Tensor, elements: Range) -> Tensor:
    return vector[elements[0] : elements[1]]


def _power_of_two_in(number: int) -> int:
    """The largest power of two that is at most `number`."""
    return 1 << (number.bit_length() - 1)
