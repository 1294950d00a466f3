"""What the loop asks of a strategy beyond Fabric's methods. The answers here suit any plain Fabric strategy."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from ..data import Part
from ..log import log
from ..shards import Piece, Shard, Shards, together
from .ledger import Ledger, Transfer
from .turns_protocol import Turns


class Contract:
    """Asks the strategy first, and answers itself where the strategy has no answer of its own."""

    def __init__(self, fabric: Fabric):
        self._fabric = fabric
        self._strategy = fabric.strategy

    def _own(self, name: str) -> Any:
        return getattr(self._strategy, name, None)

    def batch_share(self) -> tuple[int, int]:
        """Which part of each global batch this worker takes, and of how many."""
        own = self._own("batch_share")
        return own() if own else (self._fabric.global_rank, self._fabric.world_size)

    def evaluation_share(self) -> tuple[int, int]:
        """The same of what is evaluated."""
        own = self._own("evaluation_share")
        return own() if own else self.batch_share()

    def parts(self) -> int:
        """Into how many parts, one after the other, the strategy cuts what a worker computes at a time."""
        own = self._own("parts")
        return own() if own else 1

    def stand_in(self) -> bool:
        """Whether a forward is a meeting of all workers, so that one without a sample must take part as well."""
        return bool(self._own("forward_is_collective"))

    def building(self) -> AbstractContextManager[Any]:
        """A context to build the model in: on the meta device, where no worker could hold the whole."""
        own = self._own("building")
        return own() if own else nullcontext()

    def attach(self, state: Any) -> None:
        """Everything that a training is made of is built; nothing is loaded yet."""
        own = self._own("attach")
        if own:
            own(state)

    def begin_fit(self) -> None:
        """Training begins: weights are those of the seed, of init_from or of a checkpoint."""
        own = self._own("begin_fit")
        if own:
            own()

    @property
    def turns(self) -> Turns | None:
        """Who trains on what, where workers go by their own clocks; None where all make the same steps."""
        return self._own("turns")

    def lead(self) -> int:
        """Steps by which one worker can be ahead of another."""
        own = self._own("lead")
        return own() if own else 1

    def part_hook(self) -> Callable[[Part], None] | None:
        """What the strategy wants to be told of each part before its forward."""
        return self._own("begin_part")

    def clip(self, module: Any, optimizer: Any, value: float, algorithm: str) -> None:
        """Clip gradients by value or by their norm over everything that is trained."""
        own = self._own("clip")
        if own:
            own(module, optimizer, value, algorithm)
        elif algorithm == "norm":
            self._fabric.clip_gradients(module, optimizer, max_norm=value, error_if_nonfinite=False)
        else:
            self._fabric.clip_gradients(module, optimizer, clip_val=value)

    def settle(self, task: LightningModule) -> None:
        """Apply what is pending: before evaluation, checkpoint and end."""
        own = self._own("settle")
        if own:
            own(task)

    def evaluated(self, task: nn.Module) -> AbstractContextManager[Any]:
        """A context with the weights to judge and to export."""
        own = self._own("evaluated")
        return own(task) if own else nullcontext()

    def others_judged(self, task: nn.Module) -> Iterable[tuple[str, AbstractContextManager[Any]]]:
        """Other weights to validate as well: a name, and a context with them."""
        return self._strategy.others_judged(task) if self._own("validate_workers") else ()  # pyright: ignore[reportAttributeAccessIssue]

    def measured(self) -> dict[str, float]:
        """What to log besides. Every worker is asked, the first one's answer counts."""
        own = self._own("measured")
        return own() if own else {}

    def updates_put_off(self) -> bool:
        """Whether the weights of the step that has ended are still those of the step before, until `settle`."""
        own = self._own("updates_put_off")
        return bool(own and own())

    def weights_to_average(self, task: nn.Module) -> Sequence[torch.Tensor] | None:
        """After a step: the weights (this worker's parts) that an average of those to evaluate takes in, in the order
        of the task's parameters; None: not known to this worker now, ask again after the next step."""
        own = self._own("weights_to_average")
        return own(task) if own else list(task.parameters())

    def share_average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Before evaluation: an average that one worker alone could keep becomes everyone's, in place."""
        own = self._own("share_average")
        if own:
            own(tensors)

    def whole_tensors(self, task: nn.Module, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors by the name of the parameter whose shape (this worker's part) they have, in the layout of one device,
        but for those in `tensor_pieces`. Every worker must call it; the first one's answer is what is saved."""
        own = self._own("whole_tensors")
        return own(task, values) if own else values

    def tensor_pieces(self, task: nn.Module, values: dict[str, torch.Tensor]) -> dict[str, Piece]:
        """Of the same tensors, what is saved by each worker for itself."""
        own = self._own("tensor_pieces")
        return own(task, values) if own else {}

    def own_tensors(
        self, task: nn.Module, saved: dict[str, torch.Tensor], shards: Shards | None, prefix: str
    ) -> dict[str, torch.Tensor]:
        """The opposite of both: this worker's parts of what was saved, under any strategy.

        Args:
            shards: the workers' files, in which names begin with `prefix`.
        """
        own = self._own("own_tensors")
        return own(task, saved, shards, prefix) if own else together(saved, shards, prefix)

    def histograms(self) -> dict[str, dict[int, int]]:
        """Counts by value, to log besides. The first worker is asked."""
        own = self._own("histograms")
        return own() if own else {}

    def leave(self) -> None:
        """The worker is done, and asks nothing more of anybody."""
        own = self._own("leave")
        if own:
            own()

    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """Model and optimizer in the layout of one device, and what each worker keeps for itself."""
        own = self._own("full_state")
        if own:
            return own(task, optimizer)
        return {"model": task.state_dict(), "optimizer": optimizer.state_dict()}

    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """What this worker writes into a file of its own beside the checkpoint; every worker's answer is of a kind."""
        own = self._own("shard")
        return own(task, optimizer) if own else None

    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: Shards | None
    ) -> None:
        """Model and optimizer from a checkpoint, whichever strategy wrote it; `shards` are the files beside it."""
        own = self._own("load_full_state")
        if own:
            own(task, optimizer, state, shards)
            return
        if shards is not None:
            state = shards.put_together(state)
            for name in shards.own(0):
                log.info("what %s has saved for each worker is dropped: this strategy has no use for it", name)
        task.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])

    def whole_shapes(self, task: nn.Module) -> dict[str, torch.Size]:
        """Names and shapes of the task's tensors on one device; this worker's `load_state_dict` takes such."""
        own = self._own("whole_shapes")
        if own:
            return own(task)
        return {name: value.shape for name, value in task.state_dict().items() if isinstance(value, torch.Tensor)}

    def parameter_count(self, task: nn.Module) -> int:
        """Parameters of the whole network, of which this worker may hold a part."""
        own = self._own("parameter_count")
        return own(task) if own else sum(p.numel() for p in task.parameters())

    @property
    def ledger(self) -> Ledger | None:
        """What this worker has sent; None for a strategy that does not count."""
        return self._own("ledger")

    def traffic(self) -> list[Transfer]:
        """What a worker sends for a full global batch, as data."""
        own = self._own("traffic")
        return own() if own else []
