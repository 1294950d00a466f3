"""What the loop asks of a strategy beyond Fabric's methods. The answers here suit any plain Fabric strategy."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer


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

    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """Model and optimizer in the layout of one device, and what each worker keeps for itself."""
        own = self._own("full_state")
        if own:
            return own(task, optimizer)
        return {"model": task.state_dict(), "optimizer": optimizer.state_dict()}

    def load_full_state(self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any]) -> None:
        own = self._own("load_full_state")
        if own:
            own(task, optimizer, state)
            return
        task.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])

    def communication_seconds(self) -> float:
        """Seconds since the start in which this worker only waited for the network."""
        return float(getattr(self._strategy, "communication_seconds", 0.0))
