"""What a strategy sends: as data that can be read before the start, and counted while it trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["forward", "backward", "update", "next forward"]


@dataclass(frozen=True)
class Transfer:
    """Messages of one kind that a worker sends. Bytes are the mean over all workers."""

    what: str
    """What travels: gradients, activations, halos, parameters."""
    phase: Phase
    """When it starts."""
    bytes: float
    """Sent by a worker, each time."""
    inter_node_bytes: float
    """What of that leaves the node."""
    messages: float
    """Sent by a worker, each time."""
    every: float = 1.0
    """Optimizer steps from one time to the next."""
    overlaps: tuple[Phase, ...] = ()
    """Computation that goes on meanwhile."""


@dataclass(frozen=True)
class Placement:
    """Where the workers are: node n holds the ranks from n * workers_per_node on."""

    workers: int
    workers_per_node: int
    servers_on_first: bool = False
    """Whether all parameter servers are on node 0."""

    def node(self, rank: int) -> int:
        return rank // self.workers_per_node

    def apart(self, one: int, other: int) -> bool:
        """Whether two workers are on different nodes."""
        return self.node(one) != self.node(other)

    @property
    def nodes(self) -> int:
        return -(-self.workers // self.workers_per_node)

    def server_node(self, server: int) -> int:
        """Servers are dealt out to the nodes one after the other, or all on the first."""
        return 0 if self.servers_on_first else server % self.nodes

    def share_apart_from_servers(self, servers: int) -> float:
        """What part of the traffic between all workers and all servers crosses nodes."""
        pairs = [(worker, server) for worker in range(self.workers) for server in range(servers)]
        return sum(self.node(worker) != self.server_node(server) for worker, server in pairs) / len(pairs)

    def ring(self, what: str, phase: Phase, bytes_each: float, messages: float, **more: object) -> Transfer:
        """A collective over the ring of all workers in rank order: one link of each node leads out of it."""
        leaving = bytes_each * self.nodes / self.workers if self.nodes > 1 else 0.0
        return Transfer(what, phase, bytes_each, leaving, messages, **more)  # pyright: ignore[reportArgumentType]


class Ledger:
    """Bytes that this worker has sent since its start, and the seconds in which it could only wait for them.

    What is counted is the payload: not the frames of the network, nor the few bytes by which workers agree on sizes.
    """

    def __init__(self, rank: int, placement: Placement):
        self.rank = rank
        self.placement = placement
        self.bytes = 0.0
        self.inter_node_bytes = 0.0
        self.messages = 0
        self.exposed_seconds = 0.0

    def to(self, peer: int, sent: float, messages: int = 1) -> None:
        """`sent` bytes to one other worker."""
        self.bytes += sent
        self.messages += messages
        if self.placement.apart(self.rank, peer):
            self.inter_node_bytes += sent

    def with_server(self, server: int, passed: float) -> None:
        """`passed` bytes between this worker and a server, either way: a server has no ledger of its own."""
        self.bytes += passed
        self.messages += 1
        if self.placement.node(self.rank) != self.placement.server_node(server):
            self.inter_node_bytes += passed

    def _around(self, ranks: Sequence[int] | None, rounds: int, tensor_bytes: float) -> None:
        ring = range(self.placement.workers) if ranks is None else ranks
        members = len(ring)
        if members > 1:
            peer = ring[(ring.index(self.rank) + 1) % members]
            self.to(peer, rounds * (members - 1) / members * tensor_bytes, rounds * (members - 1))

    def all_reduce(self, tensor_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring over all K workers, or over those in `ranks`: 2 (K - 1) / K of the tensor, in 2 (K - 1) messages."""
        self._around(ranks, 2, tensor_bytes)

    def reduce_scatter(self, tensor_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring over all K workers, or over those in `ranks`: (K - 1) / K of the whole tensor."""
        self._around(ranks, 1, tensor_bytes)

    def all_gather(self, whole_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring, as above: (K - 1) / K of the gathered whole (the mean, where the parts are unequal)."""
        self.reduce_scatter(whole_bytes, ranks)
