"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..state import RunState


class EMA:
    """average <- decay * average + (1 - decay) * weights after every step (Polyak and Juditsky 1992).

    Validation, test and evaluation use the average; training goes on with the weights themselves. Buffers are taken as
    they are.

    Args:
        decay: in [0, 1); the average reaches back about 1 / (1 - decay) steps.

    Raises:
        ValueError: decay out of range.
    """

    def __init__(self, decay: float = 0.999):
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"callbacks.ema.decay={decay} must be at least 0 and less than 1")
        self.decay = decay
        self.average: list[Tensor] = []

    def on_fit_start(self, state: RunState) -> None:
        weights = list(state.task.parameters())
        if self.average:
            self.average = [kept.to(w) for kept, w in zip(self.average, weights, strict=True)]
        else:
            self.average = [w.detach().clone() for w in weights]

    def on_step_end(self, state: RunState) -> None:
        weights = [w.detach() for w in state.task.parameters()]
        torch._foreach_lerp_(self.average, weights, 1.0 - self.decay)

    @contextmanager
    def evaluated(self, state: RunState) -> Iterator[None]:
        """The average in place of the weights."""
        if not self.average:
            yield
            return
        weights = [w.data for w in state.task.parameters()]
        kept = [w.clone() for w in weights]
        for weight, average in zip(weights, self.average, strict=True):
            weight.copy_(average)
        try:
            yield
        finally:
            for weight, original in zip(weights, kept, strict=True):
                weight.copy_(original)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = list(state["average"])
