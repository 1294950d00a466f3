"""A strategy that computes wrongly, for the doctor to find."""

from typing import Any

from leyden.trainer.strategies.ddp import DDP


class HalfGradients(DDP):
    """Steps with half of each gradient."""

    def optimizer_step(self, optimizer: Any, **more: Any) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        return super().optimizer_step(optimizer, **more)
