"""Transfers of a strategy as data: messages between workers and their placement, computable without torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal, NamedTuple

from ..hardware.schema import Topology

Phase = Literal["forward", "backward", "update", "next forward"]
Pattern = Literal["ring", "butterfly", "pairs", "servers"]
Link = Literal["none", "in node", "between nodes", "both"]


class Send(NamedTuple):
    """Messages of one worker to another."""

    peer: int
    bytes: float
    messages: float = 1.0


Sends = Callable[[int], Iterable[Send]]
"""Messages of a worker, by rank, in one transfer; the ledger counts by the same functions."""


def ring(ranks: Sequence[int], rounds: int, tensor_bytes: float) -> Sends:
    """Collectives over the ring of K workers, each of which sends to the next one.

    Args:
        rounds: 1 for a reduce-scatter or an all-gather, of (K - 1) / K of the whole tensor in K - 1 messages (the mean,
            if the parts are unequal); 2 for an all-reduce.
    """
    members = len(ranks)

    def sends(rank: int) -> Iterator[Send]:
        if members > 1:
            following = ranks[(ranks.index(rank) + 1) % members]
            yield Send(following, rounds * (members - 1) / members * tensor_bytes, rounds * (members - 1))

    return sends


@dataclass(frozen=True)
class Transfer:
    """Messages of one kind. Bytes and messages are those that a worker sends, the mean over all workers."""

    what: str
    """Payload: gradients, activations, halos, parameters."""
    phase: Phase
    """Phase in which it starts."""
    bytes: float
    """Each time."""
    inter_node_bytes: float
    """Part of it that leaves the node."""
    messages: float
    """Each time."""
    every: float = 1.0
    """Optimizer steps from one time to the next."""
    overlaps: tuple[Phase, ...] = ()
    """Computation that it may overlap with."""
    pattern: Pattern = "ring"
    needed_by: Phase = "update"
    """Phase that waits for it."""
    after_gradients: int | None = None
    """Elements, in the order of `Workload.parameters`, whose gradients a transfer in backward needs; None: starts
    with its phase. In forward: elements, in the same order, of the layers that then are still to come."""
    busiest_bytes: float = 0.0
    """Largest number of bytes sent by one worker; with pattern `servers`, passed by one server."""
    busiest_inter_node_bytes: float = 0.0
    """Part of these bytes that leaves the node."""

    @property
    def link(self) -> Link:
        """Links that it uses."""
        if not self.bytes:
            return "none"
        if not self.inter_node_bytes:
            return "in node"
        return "between nodes" if self.inter_node_bytes == self.bytes else "both"


@dataclass(frozen=True)
class Placement:
    """Placement of workers: node n holds the ranks from n * workers_per_node on."""

    workers: int
    workers_per_node: int
    servers_on_first: bool = False
    """Whether all parameter servers are on node 0."""

    @classmethod
    def of(cls, topology: Topology) -> "Placement":
        """Placement of the workers and servers of a topology."""
        return cls(topology.workers, topology.devices_per_node, topology.server_placement == "first_node")

    def node(self, rank: int) -> int:
        return rank // self.workers_per_node

    def apart(self, one: int, other: int) -> bool:
        """Whether two workers are on different nodes."""
        return self.node(one) != self.node(other)

    @property
    def nodes(self) -> int:
        return -(-self.workers // self.workers_per_node)

    def server_node(self, server: int) -> int:
        """Node of a server: servers are assigned to nodes in turn, or all to the first."""
        return 0 if self.servers_on_first else server % self.nodes

    def transfer(self, what: str, phase: Phase, sends: Sends, **more: Any) -> Transfer:
        """A transfer between workers.

        Args:
            sends: of each worker.
            more: further fields of Transfer.
        """
        each = [list(sends(rank)) for rank in range(self.workers)]
        sent = [fsum(send.bytes for send in sends) for sends in each]
        leaving = [fsum(send.bytes for send in sends if self.apart(rank, send.peer)) for rank, sends in enumerate(each)]
        return Transfer(
            what, phase, fsum(sent) / self.workers, fsum(leaving) / self.workers,
            fsum(send.messages for sends in each for send in sends) / self.workers,
            busiest_bytes=max(sent), busiest_inter_node_bytes=max(leaving), **more,
        )  # fmt: skip

    def all_reduce(self, what: str, phase: Phase, tensor_bytes: float, **more: Any) -> Transfer:
        """A tensor summed over all workers, in a ring."""
        return self.transfer(what, phase, ring(range(self.workers), 2, tensor_bytes), **more)

    def with_servers(self, what: str, phase: Phase, shard_bytes: Sequence[float], **more: Any) -> Transfer:
        """Every worker sends each server its shard of a tensor, or gets it from there: servers have no ledger.

        Args:
            shard_bytes: of each server.
            more: further fields of Transfer.
        """
        apart = [
            sum(self.node(worker) != self.server_node(server) for worker in range(self.workers))
            for server in range(len(shard_bytes))
        ]
        leaving = [away * size for away, size in zip(apart, shard_bytes, strict=True)]
        return Transfer(
            what, phase, fsum(shard_bytes), fsum(leaving) / self.workers, len(shard_bytes), pattern="servers",
            busiest_bytes=self.workers * max(shard_bytes), busiest_inter_node_bytes=max(leaving), **more,
        )  # fmt: skip


class DividedModule(NamedTuple):
    """A module of the network of which a device computes and holds a part."""

    path: str
    """Path of the module in `named_modules` of the workload's network; of nested ones the innermost counts."""
    work: float
    """Part of its arithmetic for `DeviceShare.samples` samples."""
    parameters: float
    """Part of its parameters, their gradients and optimizer state."""
    launches: float = 1.0
    """Operations that are launched for it, relative to a device that has all of it."""


class ExtraMemory(NamedTuple):
    """Memory that a device holds during the whole step beside what one device alone would."""

    what: str
    bytes: float


@dataclass(frozen=True)
class DeviceShare:
    """What the busiest device computes and holds, relative to one device that trains a batch alone.

    The parts `parameters`, `gradients` and `optimizer` are those of modules that are not divided.
    """

    samples: int
    """Samples of a step that go through the device's network."""
    divided: tuple[DividedModule, ...] = ()
    parameters: float = 1.0
    gradients: float = 1.0
    """0: they are in a memory of the strategy's own, which is one of `extra`."""
    optimizer: float = 1.0
    extra: tuple[ExtraMemory, ...] = ()
