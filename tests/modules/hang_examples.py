"""Datasets that stall a worker, or slow it down, for tests/launch/test_hangs.py and others."""

import os
import time
from pathlib import Path

from torch import Tensor

from leyden.datasets.digits import Digits


class Stuck(Digits):
    """Digits whose training samples stop coming on one worker.

    Args:
        rank: of the worker; -1: none.
        after: samples that can be read.
        each_s: seconds that a sample takes.
        once: a file that is made when the worker gets stuck; once it is there, everything can be read.
        first_s: seconds that the first sample takes.
    """

    def __init__(
        self, split: str, image_size: int, rank: int = -1, after: int = 0, each_s: float = 0.0, once: str = "",
        first_s: float = 0.0,
    ):  # fmt: skip
        super().__init__(split, image_size)
        self.once = Path(once) if once else None
        own = int(os.environ.get("RANK") or os.environ.get("LEYDEN_WORKER") or 0)
        stuck = rank == own and split == "train" and not (self.once and self.once.exists())
        self.left = after if stuck else float("inf")
        self.each_s = each_s if split == "train" else 0.0
        self.first_s = first_s if split == "train" else 0.0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.left <= 0:
            if self.once:
                self.once.touch()
            time.sleep(3600)
        self.left -= 1
        if self.each_s or self.first_s:
            time.sleep(self.each_s + self.first_s)
            self.first_s = 0.0
        return super().__getitem__(index)


class HangsInEvaluation:
    """Callback that never comes back from the first batch that is evaluated."""

    def on_evaluation_batch(self, *_: object) -> None:
        time.sleep(3600)
