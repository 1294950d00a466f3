"""A task whose computation is a sleep: workers on one machine then do not slow each other down."""

import os
import time
from typing import Any

from torch import nn

from leyden.trainer.components.tasks.classification import Classification

STEP_S = 0.05


class Sleeping(Classification):
    """The last worker's steps take `slower` times as long."""

    def __init__(self, model: nn.Module, classes: int, label_smoothing: float = 0.0, slower: float = 1.0):
        super().__init__(model, classes, label_smoothing)
        last = os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
        self.seconds = STEP_S * (slower if last else 1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(self.seconds)
        return super().training_step(batch, batch_idx)
