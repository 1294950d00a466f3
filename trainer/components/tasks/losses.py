"""Losses of class scores."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("cross_entropy", "bce", "focal", "binary_focal")


class ClassificationLoss(nn.Module):
    """Loss of scores (batch, classes) against classes (batch,) or weights of the classes (batch, classes).

    Always a mean over the samples of the batch, also with class weights (torch's cross entropy divides by the sum of
    their weights): the loss of a batch is then the same however it is divided over workers.

    With y the target, of which label_smoothing spreads a part uniformly over C classes, w the class weights:

    - cross_entropy: - sum_c w_c y_c log p_c, p the softmax of the scores
    - bce: - 1 / C sum_c w_c (y_c log s_c + (1 - y_c) log(1 - s_c)), s the sigmoid (Wightman et al. 2021, arXiv
      2110.00476)
    - focal: - sum_c w_c y_c (1 - p_c)^gamma log p_c (Lin et al. 2017, arXiv 1708.02002, eq. 5, of the softmax)
    - binary_focal: - 1 / C sum_c w_c (y_c (1 - s_c)^gamma log s_c + (1 - y_c) s_c^gamma log(1 - s_c)), Lin's own form

    Args:
        classes: number of classes.
        kind: one of the four.
        label_smoothing: part of the target.
        class_weights: one for each class; None: all 1.
        focal_gamma: exponent of focal and binary_focal; 0 is cross_entropy, or bce.
        target_threshold: of bce, targets above it are 1 and all others 0, before they are smoothed: mixed images are of
            both their classes (Wightman et al. 2021, section 4.1); None: as they are.

    Raises:
        ValueError: another kind, another number of weights, a negative one, a negative exponent, a part of the target
            that is none, or a threshold out of range or of another loss than bce.
    """

    weights: Tensor | None

    def __init__(
        self,
        classes: int,
        kind: Literal["cross_entropy", "bce", "focal", "binary_focal"] = "cross_entropy",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        focal_gamma: float = 2.0,
        target_threshold: float | None = None,
    ):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"loss={kind!r} must be one of {', '.join(KINDS)}")
        if class_weights is not None and (len(class_weights) != classes or min(class_weights) < 0):
            raise ValueError(
                f"class_weights={list(class_weights)} must be {classes} numbers of at least 0, one a class"
            )
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing} must be at least 0 and at most 1")
        if focal_gamma < 0:
            raise ValueError(f"focal_gamma={focal_gamma} must be at least 0")
        if target_threshold is not None and (kind != "bce" or not 0 <= target_threshold < 1):
            raise ValueError(f"target_threshold={target_threshold} must be at least 0 and less than 1, with loss=bce")
        self.classes = classes
        self.kind = kind
        self.label_smoothing = label_smoothing
        self.focal_gamma = focal_gamma
        self.target_threshold = target_threshold
        self.register_buffer(
            "weights", None if class_weights is None else torch.tensor(class_weights), persistent=False
        )

    def forward(self, scores: Tensor, labels: Tensor, label_smoothing: float | None = None) -> Tensor:
        """A scalar. `label_smoothing` replaces the training's: 0 in evaluation."""
        smoothing = self.label_smoothing if label_smoothing is None else label_smoothing
        weights = None if self.weights is None else self.weights.to(scores.dtype)
        if self.kind == "cross_entropy":
            if weights is None:
                return F.cross_entropy(scores, labels, label_smoothing=smoothing)
            total = F.cross_entropy(scores, labels, weights, label_smoothing=smoothing, reduction="sum")
            return total / max(1, len(labels))
        target = labels.to(scores.dtype) if labels.is_floating_point() else _one_hot(labels, scores)
        if self.target_threshold is not None:
            target = (target > self.target_threshold).to(target.dtype)
        target = target * (1 - smoothing) + smoothing / scores.shape[1]
        if self.kind == "bce":
            return F.binary_cross_entropy_with_logits(scores, target, weights)
        if self.kind == "binary_focal":
            losses = _binary_focal(scores, target, self.focal_gamma)
            return (losses if weights is None else losses * weights).mean()
        logs = F.log_softmax(scores, 1)
        losses = target * _power(-torch.expm1(logs), self.focal_gamma) * logs
        return -(losses if weights is None else losses * weights).sum(1).mean()


def _binary_focal(scores: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Focal loss of each class (batch, classes)."""
    present = target * _power(torch.sigmoid(-scores), gamma) * F.softplus(-scores)
    return present + (1 - target) * _power(torch.sigmoid(scores), gamma) * F.softplus(scores)


def _power(rest: Tensor, gamma: float) -> Tensor:
    return rest.clamp_min(torch.finfo(rest.dtype).eps) ** gamma  # the power's slope is infinite at 0


def _one_hot(labels: Tensor, scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter_(1, labels[:, None], 1.0)
