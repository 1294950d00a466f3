"""What tests/core/test_stragglers.py puts into real runs."""

import os
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from leyden.models.mlp import MLP


class SlowOnRank(MLP):
    """An MLP whose forward takes twenty times as long on one worker.

    Args:
        slow_rank: of that worker; -1: of none.
        seconds: of a forward of the others.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        hidden: Sequence[int],
        dropout: float,
        slow_rank: int,
        seconds: float,
    ):
        super().__init__(classes, image_shape, hidden, dropout)
        self.seconds = seconds * (20 if slow_rank == int(os.environ["RANK"]) else 1)

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return super().forward(images)


class ShortWindows:
    """Callback that shortens the windows, so that a run of a few seconds has several."""

    def on_fit_start(self, state: Any) -> None:
        state.stragglers.window_s = 0.2
