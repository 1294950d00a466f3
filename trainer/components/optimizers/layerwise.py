"""optimizer=lars and optimizer=lamb: a learning rate for each layer, from the norms of its weights and its update.

A parameter of at most one dimension (a bias, a normalization weight) takes the global learning rate, as in both papers'
implementations.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from .per_parameter import PerParameterOptimizer, adam_direction


class LARS(PerParameterOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv 1708.03888, algorithm 1).

    a = trust |w| / (|g| + weight_decay |w|);  v <- momentum v + lr a (g + weight_decay w);  w <- w - v

    with norms over a layer's weight; a = 1 for parameters of at most one dimension, and where a norm is 0.

    Args:
        lr: global learning rate.
        momentum: of the velocity v.
        weight_decay: times each weight, added to its gradient.
        trust: the paper's eta.
    """

    whole_parameters = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)

    @override
    def update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["velocity"] = torch.zeros_like(w)
        decay = group["weight_decay"]
        change = g.add(w, alpha=decay) if decay else g.clone()
        if w.ndim > 1:
            norm, gradient_norm = w.norm(), g.norm()
            rate = group["trust"] * norm / (gradient_norm + decay * norm)
            change.mul_(torch.where((norm > 0) & (gradient_norm > 0), rate, torch.ones_like(rate)))
        state["velocity"].mul_(group["momentum"]).add_(change, alpha=group["lr"])
        w.sub_(state["velocity"])


class LAMB(PerParameterOptimizer):
    """Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962, algorithm 2, with phi(z) = z).

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  both corrected for their start at 0
    u = m / (sqrt(v) + eps) + weight_decay w;  w <- w - lr |w| / |u| u

    with norms over a layer's weight; the ratio is 1 for parameters of at most one dimension, and where a norm is 0.

    Args:
        lr: learning rate.
        betas: decay of the running means of the gradient and of its square.
        eps: added to the root.
        weight_decay: decoupled, inside the ratio.

    Raises:
        ValueError: betas outside [0, 1).
    """

    whole_parameters = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    @override
    def update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        change = adam_direction(w, g, state, group).add_(w, alpha=group["weight_decay"])
        if w.ndim > 1:
            norm, own = w.norm(), change.norm()
            change.mul_(torch.where((norm > 0) & (own > 0), norm / own, torch.ones_like(norm)))
        w.sub_(change, alpha=group["lr"])
