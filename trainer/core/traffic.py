"""Traffic of a strategy: the workload that determines its transfers, and a ledger of sent bytes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..base.device_time import DeviceTime, Moment
from .transfers import DeviceShare, Placement, Sends, ring


@dataclass(frozen=True)
class Workload:
    """Properties of a training step that determine its traffic. Needs neither memory nor a process group."""

    network: nn.Module
    """The full network, in the dtype of its parameters, possibly on the meta device."""
    placement: Placement
    batch_size: int = 1
    """Global. The step is computed in one part (accumulate_grad_batches: 1)."""
    image_shape: Sequence[int] = ()
    """Shape of one sample's image: for strategies that divide activations."""
    forward: Callable[[nn.Module, Tensor], Any] = field(default=lambda network, images: network(images))
    """How the task calls the network in training."""
    activation_bytes: int | None = None
    """Bytes of an activation; as of a parameter if None."""
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


def even_share(workload: Workload) -> DeviceShare:
    """The share of plain data parallelism: the whole network, for an equal part of the batch."""
    return DeviceShare(-(-workload.batch_size // workload.placement.workers))


class Ledger:
    """Bytes that this worker has sent since its start, and the seconds that it spent waiting for them.

    Only payload counts: no frames of the network, nor the few bytes by which workers agree on sizes.

    Args:
        device: whose time is spent; None: the host's.
    """

    def __init__(self, rank: int, placement: Placement, device: torch.device | None = None):
        self.rank = rank
        self.placement = placement
        self.bytes = 0.0
        self.inter_node_bytes = 0.0
        self.messages = 0
        self.waits = DeviceTime(device)
        """Waiting time by the phase in which it was spent."""
        self.phase = ""
        """Phase of the step; empty between steps."""

    @property
    def exposed_seconds(self) -> float:
        """Seconds that computation stood still for the network, as far as the device has come."""
        return fsum(self.waits.read().values())

    def now(self) -> Moment:
        """The moment in which a wait begins, for `waited`."""
        return self.waits.now()

    def waited(self, since: Moment) -> None:
        """What was waited for has come."""
        self.waits.add(self.phase, since, self.waits.now())

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
