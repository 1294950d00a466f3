"""What Leyden's optimizers have in common: each parameter is stepped by itself."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer


class PerParameterOptimizer(Optimizer):
    """An optimizer whose `update` steps one parameter.

    Raises:
        ValueError: betas outside [0, 1).
    """

    whole_parameters: ClassVar[bool] = False
    """Whether a step needs whole tensors: strategies that divide parameters refuse such an optimizer."""

    def __init__(self, params: Iterable[Any], **defaults: Any):
        betas = defaults.get("betas", ())
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={list(betas)} must each be at least 0 and less than 1")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter with a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group)
        return loss

    def update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step one parameter, in place.

        Args:
            g: its gradient.
            state: the parameter's, empty before its first step.
            group: options.
        """
        raise NotImplementedError


def adam_direction(w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Adam's m / (sqrt(v) + eps), both moments corrected for their start at 0 (Kingma and Ba 2015, algorithm 1)."""
    if not state:
        state["step"] = torch.zeros(())  # a tensor, as torch's own
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
    beta1, beta2 = group["betas"]
    state["step"] += 1
    steps = int(state["step"])  # on the host: nothing waits
    mean, square = state["exp_avg"].lerp_(g, 1 - beta1), state["exp_avg_sq"]
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (square / (1 - beta2**steps)).sqrt_().add_(group["eps"])
    return mean / (1 - beta1**steps) / root
