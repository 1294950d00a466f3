"""task=classification: a LightningModule, usable under Lightning's Trainer too."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class Classification(LightningModule):
    """Cross entropy, top-1 and top-5 accuracy of a network that maps images to class scores.

    Args:
        model: images (batch, channels, height, width) to scores (batch, classes).
        classes: number of classes; top-5 is measured from six on.
        label_smoothing: weight of the uniform distribution in the target (Szegedy et al. 2016, section 7).
    """

    LOGGED: ClassVar[Mapping[str, int]] = {
        "train/loss": 1, "train/acc": 1, "val/loss": 1, "val/acc": 1, "val/acc5": 6,
        "test/loss": 1, "test/acc": 1, "test/acc5": 6,
    }  # fmt: skip
    """Logged metrics, with the least number of classes for each. Not inherited: a derived class may log others."""

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

    def __init__(self, model: nn.Module, classes: int, label_smoothing: float = 0.0):
        super().__init__()
        self.model = model
        self.classes = classes
        self.label_smoothing = label_smoothing

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        scores = self.model(images)
        loss = F.cross_entropy(scores, labels, label_smoothing=self.label_smoothing)
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
        self.log(f"{split}/loss", F.cross_entropy(scores, labels), batch_size=len(labels))
        self.log(f"{split}/acc", correct(scores, labels), prog_bar=True, batch_size=len(labels))
        if self.classes > 5:
            self.log(f"{split}/acc5", correct_among(scores, labels, 5), batch_size=len(labels))
        return scores


def correct(scores: Tensor, labels: Tensor) -> Tensor:
    """Fraction of the batch whose highest score is the label's; a scalar."""
    return (scores.detach().argmax(1) == labels).double().mean()


def correct_among(scores: Tensor, labels: Tensor, best: int) -> Tensor:
    """Fraction of the batch whose label is among the `best` highest scores; a scalar."""
    return (torch.topk(scores, best, dim=1).indices == labels[:, None]).any(1).double().mean()
