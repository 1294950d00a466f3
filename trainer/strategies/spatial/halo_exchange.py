"""Halos: what a worker needs of its neighbours' part of a map, fetched, and the adjoint, given back and added up.

Each is two autograd functions, between which the caller computes what needs no neighbour. Autograd runs what was made
later first: so in backward, too, messages are under way while the positions without neighbours are computed.

    start, inner part, finish, border part;   in backward: border part, finish, inner part, start
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from ...base.device_time import Moment
from ...core.traffic import Ledger
from ...core.transfers import Phase, Placement, Transfer
from ..connect import connect
from .grid import Pairs, Rectangle, transfer


class HaloChannel:
    """Messages between workers, in a group of their own, counted."""

    def __init__(self, ledger: Ledger, timeout: timedelta | None = None):
        self.ledger = ledger
        self.peers: set[int] = set()
        """Workers with which halos are exchanged."""
        self._group: Any = dist.new_group(timeout=timeout)
        self._nccl = dist.get_backend(self._group) == "nccl"
        self._sending: list[tuple[Any, Any]] = []
        """What is under way, and the tensors, which must live as long."""

    def connect(self, device: torch.device) -> None:
        """Open the connections to all peers. Every worker must call it."""
        connect(device, self._group, self.peers)

    def exchange(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], tag: int) -> "PendingHalo":
        """Start sending and receiving; `incoming` are the tensors to be filled."""
        outgoing = {peer: tensor.contiguous() for peer, tensor in outgoing.items()}
        for peer, tensor in outgoing.items():
            self.ledger.to(peer, tensor.nbytes)
        if self._nccl:
            works = self._batch_calls(outgoing, incoming)
            self._sending += [(work, outgoing) for work in works]
            return PendingHalo(self, works, incoming)
        # received in the order of ranks on every worker; a tag tells layers and directions apart
        works = [dist.irecv(tensor, peer, group=self._group, tag=tag) for peer, tensor in incoming.items()]
        for peer, tensor in outgoing.items():
            self._sending.append((dist.isend(tensor, peer, group=self._group, tag=tag), tensor))
        return PendingHalo(self, works, incoming)

    def _batch_calls(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> list[Any]:
        """NCCL knows no tags: one group call, all messages of which go on together."""
        operations = [dist.P2POp(dist.irecv, tensor, peer, self._group) for peer, tensor in incoming.items()]
        operations += [dist.P2POp(dist.isend, tensor, peer, self._group) for peer, tensor in outgoing.items()]
        return dist.batch_isend_irecv(operations) if operations else []

    def now(self) -> Moment:
        """The moment in which a wait begins."""
        return self.ledger.now()

    def received(self, began: Moment) -> None:
        """Messages have come that were waited for since `began`."""
        self.ledger.waited(began)

    def drain(self) -> None:
        """Wait until everything sent has left."""
        began = self.now()
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()
        self.ledger.waited(began)

    def announce(self, what: str, phase: Phase, pairs: Pairs, position_bytes: float) -> None:
        """The next `exchange`, as it is for all workers: `DryRun` wants to know it.

        Args:
            pairs: positions that travel from worker to worker.
            position_bytes: of one position, over all samples and channels.
        """

    def total(self, tensor: Tensor, what: str, phase: Phase) -> None:
        """Sum over workers, in place."""
        if self.ledger.placement.workers == 1:
            return
        self.ledger.all_reduce(tensor.nbytes)
        began = self.now()
        dist.all_reduce(tensor)
        self.ledger.waited(began)


class DryRun(HaloChannel):
    """A channel of worker 0 that sends nothing: what a forward and backward on the meta device would have sent."""

    def __init__(self, placement: Placement):
        self.placement = placement
        self.peers = set()
        self.transfers: list[Transfer] = []

    @override
    def announce(self, what: str, phase: Phase, pairs: Pairs, position_bytes: float) -> None:
        if pairs:
            self.transfers.append(transfer(what, phase, pairs, position_bytes, self.placement))

    @override
    def exchange(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], tag: int) -> "PendingHalo":
        return PendingHalo(self, [], incoming)

    @override
    def now(self) -> Moment:
        return None

    @override
    def received(self, began: Moment) -> None:
        """Nothing was waited for."""

    @override
    def drain(self) -> None:
        """Nothing is under way."""

    @override
    def total(self, tensor: Tensor, what: str, phase: Phase) -> None:
        if self.placement.workers > 1:
            self.transfers.append(self.placement.all_reduce(what, phase, tensor.nbytes, needed_by=phase))


class PendingHalo:
    """Messages under way."""

    def __init__(self, link: HaloChannel, works: list[Any], incoming: dict[int, Tensor]):
        self._link, self._works, self._incoming = link, works, incoming

    def wait(self) -> dict[int, Tensor]:
        """What has come, by sender."""
        began = self._link.now()
        for work in self._works:
            work.wait()
        self._link.received(began)
        return self._incoming


class Halo:
    """One worker's view of a map in pieces: what it owns, the region that it needs, who gives and who takes.

    Args:
        own, region: rectangles of the map.
        gives: what others need of the own part, by taker.
        takes: what is needed of others' parts, by giver.
        pairs: the same for all workers, as numbers.
        tag: two numbers from here on are this halo's.
    """

    def __init__(
        self,
        link: HaloChannel,
        what: str,
        own: Rectangle,
        region: Rectangle,
        gives: dict[int, Rectangle],
        takes: dict[int, Rectangle],
        pairs: Pairs,
        tag: int,
    ):
        self.link, self.what, self.own, self.region = link, what, own, region
        self.gives, self.takes, self.pairs, self.tag = gives, takes, pairs, tag
        link.peers.update(gives, takes)

    def give(self, x: Tensor, phase: Phase) -> PendingHalo:
        """Start to send the own part (batch, channels, *own) to those who need of it, and to receive the halo."""
        self.link.announce(self.what, phase, self.pairs, x.shape[0] * x.shape[1] * x.element_size())
        outgoing = {peer: x[part.within(self.own)] for peer, part in self.gives.items()}
        return self.link.exchange(outgoing, self._buffers(x, self.takes), self.tag)

    def give_back(self, region: Tensor, phase: Phase) -> PendingHalo:
        """Start to send the halo of (batch, channels, *region) to its owners, and to receive what is owned here."""
        self.link.announce(self.what, phase, self.pairs, len(region) * region.shape[1] * region.element_size())
        outgoing = {peer: region[part.within(self.region)] for peer, part in self.takes.items()}
        return self.link.exchange(outgoing, self._buffers(region, self.gives), self.tag + 1)

    @staticmethod
    def _buffers(like: Tensor, parts: dict[int, Rectangle]) -> dict[int, Tensor]:
        return {peer: like.new_empty(*like.shape[:2], *part.shape) for peer, part in parts.items()}

    def extend(self, x: Tensor, received: dict[int, Tensor]) -> Tensor:
        """(batch, channels, *region) of the own part and the halo."""
        region = x.new_empty(*x.shape[:2], *self.region.shape)
        kept = self.own.common(self.region)
        region[kept.within(self.region)] = x[kept.within(self.own)]
        for peer, part in self.takes.items():
            region[part.within(self.region)] = received[peer]
        return region

    def cut(self, region: Tensor) -> Tensor:
        """(batch, channels, *own) of a region, zero where it does not reach."""
        kept = self.own.common(self.region)
        x = region.new_zeros(*region.shape[:2], *self.own.shape)
        x[kept.within(self.own)] = region[kept.within(self.region)]
        return x

    def add_halos(self, x: Tensor, received: dict[int, Tensor]) -> Tensor:
        """The own part with what others contribute, in the order of their ranks."""
        x = x.clone()
        for peer, part in self.gives.items():
            x[part.within(self.own)] += received[peer]
        return x


class Fetching:
    """One use of a halo, from own part to region."""

    def __init__(self, halo: Halo):
        self.halo = halo
        self.forth: PendingHalo | None = None
        self.back: PendingHalo | None = None

    def start(self, x: Tensor) -> Tensor:
        """The own part, whose halo is under way from here on."""
        return _tensor(_StartFetch.apply(x, self))

    def finish(self, x: Tensor) -> Tensor:
        """The region. `x` is what `start` gave."""
        return _tensor(_FinishFetch.apply(x, self))


class Returning:
    """Reverse exchange of a halo: from contributions to a region to the own part with all workers' contributions."""

    def __init__(self, halo: Halo):
        self.halo = halo
        self.forth: PendingHalo | None = None
        self.back: PendingHalo | None = None

    def start(self, region: Tensor) -> Tensor:
        """What of the region is owned here; the rest is on its way to its owners from here on."""
        return _tensor(_StartReturn.apply(region, self))

    def finish(self, x: Tensor) -> Tensor:
        """The own part `x` plus what others contribute to it."""
        return _tensor(_FinishReturn.apply(x, self))


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


class _StartFetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, use: Fetching) -> Tensor:
        ctx.use = use
        use.forth = use.halo.give(x, "forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        use, halo = ctx.use, ctx.use.halo
        if use.back is None:  # no own position has a neighbour's input, but others have some of ours
            use.back = halo.give_back(gradients[0].new_empty(*gradients[0].shape[:2], *halo.region.shape), "backward")
        return halo.add_halos(gradients[0], use.back.wait()), None


class _FinishFetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, use: Fetching) -> Tensor:
        ctx.use = use
        assert use.forth is not None
        return use.halo.extend(x, use.forth.wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.use.back = ctx.use.halo.give_back(gradients[0], "backward")
        return ctx.use.halo.cut(gradients[0]), None


class _StartReturn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Tensor, use: Returning) -> Tensor:
        ctx.use = use
        use.forth = use.halo.give_back(region, "forward")
        return use.halo.cut(region)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.use.halo.extend(gradients[0], ctx.use.back.wait()), None


class _FinishReturn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, use: Returning) -> Tensor:
        ctx.use = use
        assert use.forth is not None
        return use.halo.add_halos(x, use.forth.wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.use.back = ctx.use.halo.give(gradients[0], "backward")
        return gradients[0], None


class Gathered(torch.autograd.Function):
    """The whole map on every worker. As each computes the same loss of it, its gradient is cut, not summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Halo) -> Tensor:
        ctx.halo = halo
        return halo.extend(x, halo.give(x, "forward").wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.halo.cut(gradients[0]), None


class SummedOverWorkers(torch.autograd.Function):
    """Sum over workers that each of them uses in the same way, so that its gradient is each worker's own."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, link: HaloChannel) -> Tensor:
        summed = value.clone()
        link.total(summed, "sums over positions", "forward")
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class Entered(torch.autograd.Function):
    """What every worker has whole, and of which each uses a part: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, link: HaloChannel) -> Tensor:
        ctx.link = link
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        ctx.link.total(summed, "gradient of the input", "backward")
        return summed, None
