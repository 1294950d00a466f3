"""optimizer=muon."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from .per_parameter import PerParameterOptimizer, adam_direction

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration (Jordan et al. 2024): steep at 0, singular values end between 0.7 and 1.2."""


class Muon(PerParameterOptimizer):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): orthogonalized momentum for hidden matrices.

    m <- momentum m + g;  u = orthogonal(g + momentum m);  w <- w - lr (scale u + weight_decay w)

    orthogonal(G) = U V^T of G = U S V^T, by five Newton-Schulz steps; a convolution's filters are a matrix of
    (outputs, inputs x height x width). Everything else is stepped by AdamW: parameters of at most one dimension, and
    those of groups with orthogonalize=false, which the run chooses: the output layer, embeddings, tokens, positions.
    torch's own Muon (2.9 on) takes two-dimensional parameters alone.

    Args:
        lr: learning rate.
        momentum: of the matrices.
        weight_decay: decoupled, times lr.
        adjust_lr: scale. match_rms_adamw: 0.2 sqrt(max(rows, columns)), with which learning rate and weight decay of
            AdamW fit both kinds (Liu et al. 2025, arXiv 2502.16982, eq. 4); original: sqrt(max(1, rows / columns)),
            Jordan's.
        betas: of AdamW.
        eps: of AdamW.
        orthogonalize: default of the parameter groups.

    Raises:
        ValueError: another word for adjust_lr, or betas outside [0, 1).
    """

    whole_parameters = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        orthogonalize: bool = True,
    ):
        if adjust_lr not in ("match_rms_adamw", "original"):
            raise ValueError(f"adjust_lr={adjust_lr!r} must be one of match_rms_adamw, original")
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr=adjust_lr, betas=tuple(betas),
            eps=eps, orthogonalize=orthogonalize,
        )  # fmt: skip

    @override
    def update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        is_matrix = group["orthogonalize"] and w.ndim > 1
        change = _matrix_direction(w, g, state, group) if is_matrix else adam_direction(w, g, state, group)
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(change, alpha=group["lr"])


def _matrix_direction(w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    if not state:
        state["momentum"] = torch.zeros_like(w)
    momentum = state["momentum"].mul_(group["momentum"]).add_(g)
    matrix = g.add(momentum, alpha=group["momentum"]).flatten(1)  # Nesterov's form
    rows, columns = matrix.shape
    usual = group["adjust_lr"] == "match_rms_adamw"
    scale = 0.2 * max(rows, columns) ** 0.5 if usual else max(1.0, rows / columns) ** 0.5
    return orthogonalize(matrix).mul_(scale).to(w.dtype).reshape(w.shape)


def orthogonalize(matrix: Tensor) -> Tensor:
    """U V^T of a matrix U S V^T, nearly: five steps of X <- a X + b (X X^T) X + c (X X^T)^2 X from X = G / |G|.

    In bfloat16 on CUDA, whose rounding the iteration bears; else in the matrix's own type.
    """
    a, b, c = _COEFFICIENTS
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
