"""task=classification: a LightningModule, usable under Lightning's Trainer too."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from typing_extensions import override

from ...core.task_contract import TaskContract
from .losses import ClassificationLoss
from .metrics import EvaluationMetrics, Wanted, names_logged_by


class Classification(TaskContract, LightningModule):
    """A loss (cross entropy if not said), top-1 and top-5 accuracy of a network that maps images to class scores.

    Labels are classes (batch,), or weights of the classes (batch, classes), as mixup makes them: accuracies then count
    the class of the largest weight.

    Args:
        model: images (batch, channels, height, width) to scores (batch, classes).
        classes: number of classes; top-5 is measured from six on.
        label_smoothing: weight of the uniform distribution in the target (Szegedy et al. 2016, section 7), in training.
        loss: cross_entropy, bce or focal (`ClassificationLoss`).
        class_weights: factor on each class's loss; None: all 1.
        focal_gamma: exponent of focal.
        metrics: further metrics of validation and test (`EvaluationMetrics`).
        target_threshold: of bce, targets above it are 1 and all others 0; None: as they are.

    Raises:
        ValueError: another loss, another number of weights than classes, a threshold that is none of the loss, or an
            unknown metric.
    """

    multi_label: ClassVar[bool | None] = False
    """Whether an image has any number of classes."""

    LOGGED: ClassVar[Mapping[str, int]] = {
        "train/loss": 1, "train/acc": 1, "val/loss": 1, "val/acc": 1, "val/acc5": 6,
        "test/loss": 1, "test/acc": 1, "test/acc5": 6,
    }  # fmt: skip
    """Logged metrics, with the least number of classes for each. Not inherited: a derived class may log others."""

    @override
    @staticmethod
    def more_logged(arguments: Mapping[str, Any]) -> list[str]:
        """Metrics that are logged because of the task's arguments."""
        return names_logged_by(arguments.get("metrics"))

    @override
    @staticmethod
    def try_network(model: nn.Module, images: Tensor, classes: int | None) -> str | None:
        """The error in a network's output for images without values, for the trial build; None if correct.

        Args:
            classes: of the data; None: unknown yet.
        """
        scores: Any = model(images)
        if not isinstance(scores, Tensor):
            return f"its forward gives a {type(scores).__name__}, and the task computes its loss from one tensor"
        wanted = [len(images), classes or 1]
        if scores.ndim >= 2 and len(scores) == wanted[0] and scores.shape[1] >= wanted[1]:
            return None
        return f"its forward makes {list(scores.shape)} of a batch of {len(images)} images, not scores {wanted}"

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        label_smoothing: float = 0.0,
        loss: Literal["cross_entropy", "bce", "focal"] = "cross_entropy",
        class_weights: Sequence[float] | None = None,
        focal_gamma: float = 2.0,
        metrics: Wanted = (),
        target_threshold: float | None = None,
    ):
        super().__init__()
        self.model = model
        self.classes = classes
        self.loss = ClassificationLoss(classes, loss, label_smoothing, class_weights, focal_gamma, target_threshold)
        self.metrics = EvaluationMetrics(metrics, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        scores = self.model(images)
        loss = self.loss(scores, labels)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/acc", correct(scores, labels), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Log loss and accuracy. Returns the scores (batch, classes), for callbacks."""
        images, labels = batch
        scores = self.model(images)
        self.log(f"{split}/loss", self.loss(scores, labels, label_smoothing=0.0), batch_size=len(labels))
        self.log(f"{split}/acc", correct(scores, labels), prog_bar=True, batch_size=len(labels))
        if self.classes > 5:
            self.log(f"{split}/acc5", correct_among(scores, labels, 5), batch_size=len(labels))
        for name, metric in self.metrics.update(split, scores, labels):
            self.log(name, metric)
        return scores


def correct(scores: Tensor, labels: Tensor) -> Tensor:
    """Fraction of the batch whose highest score is the label's; a scalar."""
    return (scores.detach().argmax(1) == _classes(labels)).double().mean()


def correct_among(scores: Tensor, labels: Tensor, best: int) -> Tensor:
    """Fraction of the batch whose label is among the `best` highest scores; a scalar."""
    return (torch.topk(scores, best, dim=1).indices == _classes(labels)[:, None]).any(1).double().mean()


def _classes(labels: Tensor) -> Tensor:
    return labels if labels.ndim == 1 else labels.argmax(1)
