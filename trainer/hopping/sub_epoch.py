"""Execution of a sub-epoch in a worker: a model from its arrival to the end of one partition."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.signals import StopRequest
from ..config.schema import Config
from ..core import threads
from ..core.state import RunState
from ..engine.build import Shared, assemble
from ..engine.init_weights import load_initial_weights
from ..engine.loop import Epoch, HandedOff, Stopped, fit
from ..engine.monitored_schedules import refuse_monitor_before_validation
from ..engine.network.teacher import load_teacher
from ..engine.train import begin, end, status_of_stop, test
from .snapshot import unpack


def prepare(
    config: Config,
    run_dir: Path,
    shared: Shared,
    stop_request: StopRequest,
    content: dict[str, Any] | None,
    path: Path | None,
) -> RunState:
    """State of a model, built and restored.

    Built anew for each sub-epoch: a worker trains models of different classes in turn, and keeping all of them on the
    device would limit their number by its memory.

    Args:
        content: training state of the model; None: it is new.
        path: the checkpoint that the state was read from; None: another worker sent it.
    """
    threads.use_initial()
    state = assemble(config, run_dir, stop_request, shared)
    load_teacher(state)
    if content is not None:
        unpack(state, content, path)
        state.drawing = []  # checked where the model began
    else:
        refuse_monitor_before_validation(state, resumed=False)
        load_initial_weights(state)
    if content is None or path is not None:
        begin(state)
    return state


def train(state: RunState, epoch: int, partitions: Sequence[int], stop_reason: str | None) -> str:
    """Train on one partition, or on what a checkpoint left of it. Arguments as in `StartSubEpoch`.

    Returns:
        "left": the model hops on. "done": it is trained and tested, and its run has ended. Else the status of a stopped
        run, whose checkpoint is written.

    Raises:
        NotFiniteValue: the loss is NaN or infinite.
    """
    assert state.epoch == epoch
    state.stop_reason = stop_reason
    if partitions:
        order = state.data.order
        order.begun[epoch] = list(partitions)
        epoch_began = state.step - state.step_in_epoch
        state.leaves_at = epoch_began + order.ends(epoch)[len(partitions) - 1]
    try:
        fit(state, Epoch)
        status = test(state)
    except HandedOff:
        return "left"
    except Stopped:
        status = status_of_stop(state)
    end(state, status)
    return status
