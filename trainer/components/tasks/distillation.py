"""task=distillation: classification by a student that learns from a teacher's class scores, too."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from .classification import Classification, correct
from .metrics import Wanted


class Distillation(Classification):
    """Knowledge distillation (Hinton, Vinyals and Dean 2015, arXiv 1503.02531, section 2).

    With z the student's scores, v the teacher's for the same images, y the labels, T the temperature:

        loss = (1 - alpha) CE(y, softmax(z)) + alpha T^2 KL(softmax(v / T) || softmax(z / T))

    T^2 keeps the size of the second gradient when T changes. Both terms are means over the samples of the batch.

    The teacher is in evaluation mode and without gradients. It is none of the task's modules: strategies, optimizers
    and checkpoints do not know it, and each worker holds a whole one. Evaluation does not need it.

    Logged in training: loss, acc, cross_entropy and kl, the two terms without their weights (kl with T^2); in
    validation and test what task=classification logs.

    Args:
        model: the student, images (batch, channels, height, width) to scores (batch, classes).
        classes: number of classes; top-5 is measured from six on.
        teacher: where the teacher comes from; frozen as path and SHA-256.
        temperature: T.
        alpha: weight of the teacher.
        label_smoothing, class_weights, metrics: as of `Classification`.

    Raises:
        ValueError: a temperature of 0 or less, a weight outside 0..1, or as `Classification`.
    """

    LOGGED: ClassVar[Mapping[str, int]] = {**Classification.LOGGED, "train/cross_entropy": 1, "train/kl": 1}
    """Logged metrics, with the least number of classes for each."""

    # read from the class itself, and not inherited
    try_network = staticmethod(Classification.try_network)
    more_logged = staticmethod(Classification.more_logged)

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        teacher: str | Mapping[str, str],
        temperature: float = 4.0,
        alpha: float = 0.9,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        metrics: Wanted = (),
    ):
        super().__init__(model, classes, label_smoothing=label_smoothing, class_weights=class_weights, metrics=metrics)
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} must be greater than 0")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha} must be at least 0 and at most 1")
        self.teacher = teacher
        self.temperature = temperature
        self.alpha = alpha

    def set_teacher(self, network: nn.Module) -> None:
        """Learn from this network, images to scores (batch, classes), on the device of the training."""
        self.outer_networks = (network.eval().requires_grad_(False),)

    @override
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        assert self.outer_networks, "set_teacher was not called"
        images, labels = batch
        with torch.no_grad():
            given = self.outer_networks[0](images)
        scores = self.model(images)
        by_labels = self.loss(scores, labels)
        by_teacher = soft_target_loss(scores, given, self.temperature)
        loss = (1 - self.alpha) * by_labels + self.alpha * by_teacher
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/cross_entropy", by_labels)
        self.log("train/kl", by_teacher)
        self.log("train/acc", correct(scores, labels), on_step=False, on_epoch=True)
        return loss


def soft_target_loss(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(scores / T)), mean over the rows of (batch, classes); a scalar."""
    own = F.log_softmax(scores / temperature, 1)
    wanted = F.log_softmax(teacher.to(scores.dtype) / temperature, 1)
    return F.kl_div(own, wanted, reduction="sum", log_target=True) * (temperature**2 / max(1, len(scores)))
