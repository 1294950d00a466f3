"""A model's visit to a worker: from where it is to the end of one partition."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import checkpoint, threads
from ..assemble import Shared, assemble
from ..config import Config
from ..log import log
from ..loop import Left, Stopped, fit
from ..run import begin, end, judge, told_to_stop
from ..signals import StopRequest
from ..state import RunState
from .parcel import unpack


@dataclass(frozen=True)
class Whereto:
    """Which part of its training a model is here for."""

    epoch: int
    partitions: Sequence[int]
    """Those that it has come to in this epoch; the last is to be trained on. Empty: its training ends here."""
    stop_reason: str | None
    """Why it ends early."""


def ready(
    config: Config,
    run_dir: Path,
    shared: Shared,
    stop_request: StopRequest,
    content: dict[str, Any] | None,
    path: Path | None,
) -> RunState:
    """The model as it came here.

    Args:
        content: its training state; None: it has not begun.
        path: the checkpoint that the state comes from; None: another worker.
    """
    threads.use_own()
    state = assemble(config, run_dir, stop_request, shared)
    if content is not None:
        unpack(state, content, path)
        state.drawing = []  # looked for where the model began
    elif config.init_from is not None:
        log.info(checkpoint.load_weights(state.task, config.init_from, state.contract.whole_shapes(state.task)))
    if content is None or path is not None:
        begin(state)
    return state


def train(state: RunState, whereto: Whereto) -> str:
    """Train on one partition, or on what a checkpoint left of it.

    Returns:
        "left": the model goes on elsewhere. "done": it is trained, tested, and its run has ended. Else the status of
        a run that was told to stop: its checkpoint is written.

    Raises:
        FloatingPointError: the loss is NaN or infinite.
    """
    assert state.epoch == whereto.epoch
    state.stop_reason = whereto.stop_reason
    if whereto.partitions:
        order = state.data.order
        order.begun[whereto.epoch] = list(whereto.partitions)
        epoch_began = state.step - state.step_in_epoch
        state.leaves_at = epoch_began + order.ends(whereto.epoch)[len(whereto.partitions) - 1]
    try:
        fit(state)
        status = judge(state)
    except Left:
        return "left"
    except Stopped:
        status = told_to_stop(state)
    end(state, status)
    return status
