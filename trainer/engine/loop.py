"""The training loop. Strategies are known through their contract alone.

Our own and not that of Lightning's Trainer, which resumes at no exact sample, saves inside the signal handler, and
costs several times as much a step (docs/decisions.md, docs/figures.md).

fit -> epochs (`LockstepEpoch`, `TicketEpoch`) -> steps (`TrainingStep`: data, forward, backward, update) -> log, save.
"""

import torch

from ..base.heartbeat import CALLBACKS, SYNCHRONIZATION, heartbeat
from ..core.callback_contract import CallbackContract
from ..core.checkpoints.checkpoint_io import NotFinite
from ..core.communication.plain_values import broadcast_value
from ..core.state import RunState
from .checkpoints import checkpoint
from .epoch import HandedOff, Stopped
from .evaluate import view_of
from .lockstep_epoch import LockstepEpoch
from .losses import how_to_go_on
from .progress import ProgressFile
from .sanity_check import sanity_check
from .ticket_epoch import TicketEpoch


def fit(state: RunState) -> None:
    """Train until the config's end, a callback's wish, the end of trainer.max_time, or a signal.

    Raises:
        Stopped: on a signal; the checkpoint of this step is written.
        HandedOff: at the step that `state.leaves_at` names.
        NotFiniteValue: the loss is NaN or infinite, or the weights that were to be saved are.
        OSError: a checkpoint could not be written.
    """
    heartbeat.at(CALLBACKS, state.step)
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.begin_fit()
    view_of(state).training = True
    with heartbeat.phase(CALLBACKS, "the training's start"):
        state.hooks("on_fit_start")
        state.call(CallbackContract.on_fit_start)
    sanity_check(state)
    state.hooks("on_train_start")
    _begin_time(state)
    try:
        _train_and_save(state)
    except NotFinite as error:
        raise NotFinite(f"{error} at step {state.step}; {how_to_go_on(state)}") from error
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.flush_pending_updates(state.task)
    with heartbeat.phase(CALLBACKS, "the training's end"):
        state.hooks("on_train_end")
        state.hooks("on_fit_end")
    view_of(state).training = False


def _train_and_save(state: RunState) -> None:
    """Train, until every checkpoint is complete."""
    try:
        _train(state)
    except (Stopped, HandedOff):
        checkpoint.finish(state)
        raise
    except BaseException:
        state.checkpoint_writer.finish()
        raise
    checkpoint.finish(state)


def _train(state: RunState) -> None:
    progress = ProgressFile(state)
    tickets = state.contract.ticket_source
    with torch.autograd.set_detect_anomaly(state.config.trainer.detect_anomaly):
        while not _finished(state):
            if state.step == state.leaves_at:
                raise HandedOff
            epoch = LockstepEpoch(state, progress) if tickets is None else TicketEpoch(state, progress, tickets)
            epoch.train()


def _begin_time(state: RunState) -> None:
    """Count the time of this session; a run that is resumed may have none left."""
    limit = state.time_limit
    limit.begin()
    if limit.seconds is not None and broadcast_value(limit.over, state.fabric.strategy):
        state.stop_reason = limit.reason


def _finished(state: RunState) -> bool:
    at_end = state.step >= state.total_steps or state.epoch >= state.config.trainer.max_epochs
    return at_end or state.stop_reason is not None
