"""Losses of the steps since the last check for NaN, which is the one place where training reads them."""

from typing import Any

import torch
from torch import Tensor

from ..base.errors import NotFiniteValue
from ..base.paths import shorten_path
from ..core.state import RunState


def how_to_go_on(state: RunState) -> str:
    """What helps a training that has diverged, and the key by which a new run begins with its last checkpoint."""
    helps = "a smaller learning rate or trainer.gradient_clip_val=1 may prevent it in a new run"
    if state.last_checkpoint is None:
        return helps
    key = "init_from" if state.config.model is None else "model.pretrained"
    return f"{helps}, which begins with the last checkpoint's weights by {key}={shorten_path(state.run_dir)}"


class Losses:
    """Losses by part, with the optimizer step and the learning rate of each."""

    def __init__(self, state: RunState):
        self._state = state
        self._optimizer = state.raw_optimizer
        self._values: list[Tensor] = []
        self._steps: list[tuple[int, Any]] = []
        """The optimizer step of each loss, counted from 1, and the learning rate of that step."""
        self._first_step = state.step + 1

    def add(self, loss: Tensor | None) -> None:
        """Keep a part's loss; None: the task has skipped the batch."""
        self._values.append(torch.zeros((), device=self._state.fabric.device) if loss is None else loss.detach())

    def begin_update(self) -> None:
        """Note the step and the learning rate that the newest losses belong to."""
        rate = self._optimizer.param_groups[0]["lr"]
        # a rate on the device changes in place, and to read it here would wait for the device
        of_step = (self._state.step + 1, rate.clone() if isinstance(rate, Tensor) else rate)
        self._steps += [of_step] * (len(self._values) - len(self._steps))

    @property
    def unchecked(self) -> bool:
        """Whether a step has been made since the last check."""
        return self._first_step <= self._state.step

    def refuse_not_finite(self) -> None:
        """
        Raises:
            NotFiniteValue: a loss since the last check is NaN or infinite.
        """
        self._first_step = self._state.step + 1
        if not self._values:  # dummy batches only
            return
        finite = torch.isfinite(torch.stack(self._values).flatten())
        if not self._state.tolerates_divergence and not bool(finite.all()):
            position = int((~finite).nonzero()[0])
            self.begin_update()  # of a step that was begun, if the data ended in it
            step, rate = self._steps[position]
            raise NotFiniteValue(
                f"the loss is {self._values[position].item()} at step {step}, learning rate {float(rate):.3g}: "
                f"{how_to_go_on(self._state)}"
            )
        self._values.clear()
        self._steps.clear()
