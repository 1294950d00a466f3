"""optimizer=lion."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from .per_parameter import PerParameterOptimizer


class Lion(PerParameterOptimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): the sign of an interpolated momentum.

    c = beta1 m + (1 - beta1) g;  w <- w - lr (sign(c) + weight_decay w);  m <- beta2 m + (1 - beta2) g

    Every element is stepped by itself, so that parameters may be divided in any way.

    Args:
        lr: learning rate; the paper takes a third to a tenth of AdamW's.
        betas: of the interpolation, and of the momentum.
        weight_decay: decoupled, times lr; the paper takes 3 to 10 times AdamW's.

    Raises:
        ValueError: betas outside [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr=lr, betas=tuple(betas), weight_decay=weight_decay)

    @override
    def update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["momentum"] = torch.zeros_like(w)
        beta1, beta2 = group["betas"]
        sign = state["momentum"].lerp(g, 1 - beta1).sign_()
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(sign, alpha=group["lr"])
        state["momentum"].lerp_(g, 1 - beta2)
