"""LightningModules for tests/engine/test_trainer_keys.py."""

from typing import Any

import torch
from lightning_examples import Plain
from torch import Tensor
from torchmetrics import MeanMetric


class Draws(Plain):
    """Random numbers in training and validation, and one Metric object that both update."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.mean.update(torch.rand(()))
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.sanity_checking:
            self.mean.update(torch.rand(()))
        super().validation_step(batch, batch_idx)


class FailsInValidation(Plain):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        raise RuntimeError("validation_step is broken")


class NanInBackward(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        weight = next(self.parameters())
        return super().training_step(batch, batch_idx) + torch.sqrt(weight - weight).sum()
