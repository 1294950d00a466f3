"""task=multi_label: images that have any number of classes, or none."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ...core.task_contract import TaskContract
from .classification import Classification
from .losses import ClassificationLoss
from .metrics import EvaluationMetrics, Wanted


class MultiLabel(TaskContract, LightningModule):
    """Binary cross entropy, or focal loss, of each class by itself, mean over classes and samples.

    Targets are float32 (batch, classes): 1 where an image has the class, 0 where not, fractions after mixup. A class is
    predicted where its score is greater than 0, a probability over a half.

    Logged: loss; acc, the part of all (sample, class) pairs that is right; exact, the part of the samples of which
    every class is.

    Args:
        model: images (batch, channels, height, width) to scores (batch, classes).
        classes: number of classes.
        label_smoothing: part of the target that is spread uniformly over the classes.
        class_weights: factor on each class's loss; None: all 1.
        metrics: further metrics of validation and test (`EvaluationMetrics`).
        loss: bce or focal (binary_focal of `ClassificationLoss`).
        focal_gamma: exponent of focal.

    Raises:
        ValueError: another loss, another number of weights than classes; in a step, targets that are no vectors.
    """

    multi_label: ClassVar[bool | None] = True

    LOGGED: ClassVar[Mapping[str, int]] = {
        "train/loss": 1, "train/acc": 1, "val/loss": 1, "val/acc": 1, "val/exact": 1, "test/loss": 1, "test/acc": 1,
        "test/exact": 1,
    }  # fmt: skip
    """Logged metrics, for any number of classes."""

    try_network = staticmethod(Classification.try_network)
    more_logged = staticmethod(Classification.more_logged)

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        metrics: Wanted = (),
        loss: Literal["bce", "focal"] = "bce",
        focal_gamma: float = 2.0,
    ):
        super().__init__()
        if loss not in ("bce", "focal"):
            raise ValueError(f"loss={loss!r} must be one of bce, focal")
        self.model = model
        kind = "binary_focal" if loss == "focal" else "bce"
        self.loss = ClassificationLoss(classes, kind, label_smoothing, class_weights, focal_gamma)
        self.metrics = EvaluationMetrics(metrics, classes, multi_label=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        scores, targets = self._scores(batch)
        loss = self.loss(scores, targets)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/acc", _right(scores, targets).double().mean(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Log loss and accuracies. Returns the scores (batch, classes), for callbacks."""
        scores, targets = self._scores(batch)
        right = _right(scores, targets)
        values: dict[str, Any] = {
            "loss": self.loss(scores, targets, label_smoothing=0.0),
            "acc": right.double().mean(),
            "exact": right.all(1).double().mean(),
        }
        for name, value in values.items():
            self.log(f"{split}/{name}", value, prog_bar=name == "acc", batch_size=len(targets))
        for name, metric in self.metrics.update(split, scores, targets):
            self.log(name, metric)
        return scores

    def _scores(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, targets = batch
        scores = self.model(images)
        if not targets.is_floating_point() or targets.shape != scores.shape:
            raise ValueError(
                f"task=multi_label needs targets (batch, classes) of 0 and 1 in float32, and the dataset's labels are "
                f"{list(targets.shape)} of {targets.dtype}: task=classification"
            )
        return scores, targets


def _right(scores: Tensor, targets: Tensor) -> Tensor:
    """Whether the prediction of each sample and class is right; bool (batch, classes)."""
    return (scores.detach() > 0) == torch.gt(targets, 0.5)
