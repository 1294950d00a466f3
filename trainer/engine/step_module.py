"""The module that a strategy wraps."""

from typing import Any

from lightning.pytorch import LightningModule
from torch import nn


class Step(nn.Module):
    """The module that a strategy wraps: its forward runs one of the task's steps.

    Calling `task.training_step` on Fabric's wrapper instead bypasses precision and strategy where the strategy does
    not wrap the module.
    """

    def __init__(self, task: LightningModule):
        super().__init__()
        self.task = task

    def forward(self, step: str, *arguments: Any) -> Any:
        return getattr(self.task, step)(*arguments)
