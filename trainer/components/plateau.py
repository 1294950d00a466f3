"""A schedule that falls when a metric no longer improves, between a warm-up and a cool-down."""

from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from typing_extensions import override

from .lr_schedules import Constant, Duration


class Plateau(ReduceLROnPlateau):
    """torch's ReduceLROnPlateau, whose learning rate is multiplied by that of schedule=wsd.

    The metric is compared from the beginning, in the warm-up too. Without warm-up and cool-down it is torch's own.

    Args:
        total_steps: optimizer steps of the whole training; supplied by the run.
        steps_per_epoch: supplied by the run.
        warmup_steps, cooldown_steps, cooldown_shape: as of `WarmupSchedule`.
        mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps: torch's; `min_lr` is compared without
            the factor of warm-up and cool-down.

    Raises:
        ValueError: warm-up and cool-down are longer than the training, or an argument of torch's is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        steps_per_epoch: int = 1,
        warmup_steps: Duration = 0,
        cooldown_steps: Duration = 0,
        cooldown_shape: Literal["linear", "sqrt"] = "linear",
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ):
        self.ramp: Constant | None = None
        """Warm-up and cool-down, stepped at each optimizer step; its base rates are those that have fallen."""
        if warmup_steps or cooldown_steps:
            self.ramp = Constant(optimizer, total_steps, steps_per_epoch, warmup_steps, cooldown_steps, cooldown_shape)
        super().__init__(optimizer, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps)

    @override
    def _reduce_lr(self, epoch: int) -> None:
        if self.ramp is None:
            super()._reduce_lr(epoch)
            return
        for group, rate in zip(self.optimizer.param_groups, self.ramp.base_lrs, strict=True):
            group["lr"] = rate
        super()._reduce_lr(epoch)
        self.ramp.base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        factor = self.ramp.lr_lambdas[0](self.ramp.last_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    @override
    def state_dict(self) -> dict[str, Any]:
        """Without `ramp`, which has a state of its own."""
        return {name: value for name, value in super().state_dict().items() if name != "ramp"}
