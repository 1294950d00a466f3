"""Modules of people's own that fail in the middle of a training, or surprise it."""

from typing import Any

import torch
from lightning_examples import SEEN, Plain, Plateau
from torch import Tensor


class FailsInForward(Plain):
    """Fails in a function that its training_step calls."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2:
            self._divide(batch_idx - 2)
        return super().training_step(batch, batch_idx)

    def _divide(self, by: int) -> float:
        try:
            return 1 / by
        except ZeroDivisionError as error:
            raise RuntimeError("the third batch is bad") from error


class PlateauOfValidation(Plateau):
    """Compares what its validation logs, after every epoch or every second batch."""

    def __init__(self, interval: str = "epoch", frequency: int = 1):
        super().__init__()
        self.times = {"interval": interval, "frequency": frequency}

    def configure_optimizers(self) -> Any:
        returned = super().configure_optimizers()
        returned["lr_scheduler"] |= {"monitor": "val_loss", **self.times}
        return returned


class NoLoss(Plain):
    """Forgets to return the loss, always or in the epochs before one; or trains by hand without saying so."""

    def __init__(self, until: int = 99, by_hand: bool = False):
        super().__init__()
        self.until = until
        self.by_hand = by_hand

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if self.by_hand:
            with torch.no_grad():
                next(self.parameters()).data.mul_(0.9)
        return loss if self.current_epoch >= self.until else None


class LogsOurNames(Plateau):
    """Logs names that Leyden logs too, and compares one of them."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("lr", 7.0 + self.current_epoch)
        self.log("samples_per_second", 1.5, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("epoch", 42.0)

    def configure_optimizers(self) -> Any:
        returned = super().configure_optimizers()
        returned["lr_scheduler"]["monitor"] = "lr"
        returned["lr_scheduler"]["scheduler"].threshold = 0.0
        return returned

    def on_train_end(self) -> None:
        scheduler: Any = self.lr_schedulers()
        SEEN.append(("best", scheduler.best))


class KeepsFileOpen:
    """Callback that writes each step to a file of its rank, which it never closes, and may then fail."""

    def __init__(self, folder: str, fails_at: int | None = None):
        self.folder = folder
        self.fails_at = fails_at

    def on_fit_start(self, state: Any) -> None:
        self.file = open(f"{self.folder}/steps-{state.fabric.global_rank}", "w")  # noqa: SIM115

    def on_step_end(self, state: Any) -> None:
        self.file.write(f"{state.step} ")
        if state.step == self.fails_at:
            raise RuntimeError("on purpose")
