"""Gradients of a run's network for one batch of the images that it is evaluated on."""

from typing import Any

from torch import Tensor

from ...core.hooks import positional
from ...core.lightning_adapter import batch_transfer
from ...core.metric_log import MetricLog
from ...core.state import RunState
from ..step_module import run_step


def compute_gradients(state: RunState, split: str) -> str | None:
    """Gradients of the training loss for the first batch of a split, in evaluation mode, left in `grad`.

    Returns:
        Why there are none: the task's training_step cannot take such a batch; None: it could.
    """
    batch, samples = next(iter(state.data.evaluation_batches(split)))
    state.log = MetricLog("train", steps_by_default=True, owner=state.task)
    state.log.begin_step()
    state.log.begin_part(samples)
    state.task.zero_grad()
    step = f"{type(state.task).__name__}.training_step"
    try:
        output: Any = run_step(state, "training_step", *(batch_transfer(state)(batch), 0)[: _count_taken(state)])
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, Tensor):
            return f"{step} makes no loss of a batch of {split}"
        loss.backward()
    except Exception as error:  # the task's code, with a batch that it was not written for
        return f"{step} takes no batch of {split} ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return None


def _count_taken(state: RunState) -> int:
    return positional(state.task.training_step)
