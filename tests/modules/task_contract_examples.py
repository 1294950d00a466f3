"""Tasks of a user, with and without the contract."""

from collections.abc import Mapping
from typing import Any, ClassVar

from lightning.pytorch import LightningModule
from torch import nn

from leyden.trainer.core.task_contract import TaskContract


class _Task(LightningModule):
    def __init__(self, model: nn.Module | None = None):
        super().__init__()
        self.model = model


class Fits(TaskContract, _Task):
    LOGGED: ClassVar[Mapping[str, int]] = {"train/loss": 1}

    def on_train_epoch_edn(self) -> None: ...


class Derived(Fits): ...


class Misspelt(TaskContract, _Task):
    def try_networks(self) -> None: ...


class Plain(_Task):
    @staticmethod
    def try_network(model: Any, images: Any, classes: Any) -> None: ...


class Foreign(_Task):
    multi_label = True
    LOGGED = ("an own list",)
