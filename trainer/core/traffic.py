"""Traffic of a strategy: transfers as data, computable on a laptop for any cluster, and a ledger of sent bytes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

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
    """In backward: number of elements, in the order of `Workload.parameters`, whose gradients it needs; None: starts
    with its phase."""
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


@dataclass(frozen=True)
class Workload:
    """Properties of a training step that determine its traffic. Needs neither memory nor a process group."""

    network: nn.Module
    """The full network, in the dtype of its parameters, possibly on the meta device."""
    placement: Placement
    batch_size: int = 1
    """Global. The step is computed in one part (accumulate_grad_batches: 1)."""
    image_shape: Sequence[int] = ()
    """Of one sample: for strategies that divide activations."""
    forward: Callable[[nn.Module, Tensor], Any] = field(default=lambda network, images: network(images))
    """How the task calls the network in training."""
    activation_bytes: int | None = None
    """Of an activation; None: as a parameter."""
    device: Literal["cpu", "cuda"] = "cpu"
    """CPU: collectives go through gloo, whose reduce-scatter is an all-reduce, and block."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Trained parameters in the order in which backward computes their gradients: the last layer's first."""
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad][::-1]

    def ready(self, parameters: Iterable[nn.Parameter]) -> int:
        """Elements whose gradients exist once those of `parameters` do, for `Transfer.after_gradients`."""
        wanted = {id(parameter) for parameter in parameters}
        last = max(index for index, parameter in enumerate(self.parameters) if id(parameter) in wanted)
        return sum(parameter.numel() for parameter in self.parameters[: last + 1])


class Ledger:
    """Bytes that this worker has sent since its start, and the seconds that it spent waiting for them.

    Only payload counts: no frames of the network, nor the few bytes by which workers agree on sizes.
    """

    def __init__(self, rank: int, placement: Placement):
        self.rank = rank
        self.placement = placement
        self.bytes = 0.0
        self.inter_node_bytes = 0.0
        self.messages = 0
        self.exposed_seconds = 0.0

    def to(self, peer: int, sent: float, messages: float = 1) -> None:
        """`sent` bytes to one other worker."""
        self.bytes += sent
        self.messages += int(messages)
        if self.placement.apart(self.rank, peer):
            self.inter_node_bytes += sent

    def count(self, sends: Sends) -> None:
        """This worker's part of a transfer."""
        for peer, sent, messages in sends(self.rank):
            self.to(peer, sent, messages)

    def with_server(self, server: int, passed: float) -> None:
        """`passed` bytes between this worker and a server, either way: a server has no ledger of its own."""
        self.bytes += passed
        self.messages += 1
        if self.placement.node(self.rank) != self.placement.server_node(server):
            self.inter_node_bytes += passed

    def _all(self, ranks: Sequence[int] | None) -> Sequence[int]:
        return range(self.placement.workers) if ranks is None else ranks

    def all_reduce(self, tensor_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring over all K workers, or over those in `ranks`: 2 (K - 1) / K of the tensor, in 2 (K - 1) messages."""
        self.count(ring(self._all(ranks), 2, tensor_bytes))

    def reduce_scatter(self, tensor_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring over all K workers, or over those in `ranks`: (K - 1) / K of the whole tensor."""
        self.count(ring(self._all(ranks), 1, tensor_bytes))

    def all_gather(self, whole_bytes: float, ranks: Sequence[int] | None = None) -> None:
        """A ring, as above: (K - 1) / K of the gathered whole (the mean, if the parts are unequal)."""
        self.reduce_scatter(whole_bytes, ranks)
