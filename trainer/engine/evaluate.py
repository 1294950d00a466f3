"""Evaluation loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

from ..base.heartbeat import CALLBACKS, EVALUATION, SYNCHRONIZATION, heartbeat
from ..config.lightning.base_classes import overrides
from ..core.callback_contract import CallbackContract
from ..core.eval_weights import EvalWeights
from ..core.hooks import positional
from ..core.lightning_adapter import batch_transfer
from ..core.metric_log import MetricLog
from ..core.state import RunState, limit_batches
from ..core.trainer_view.view import view_of
from .step_module import run_step, untouched_metrics

Split = Literal["val", "test"]

_BatchObserver = Callable[[RunState, str, int, Any, Any], None]


def evaluate(
    state: RunState,
    split: Split,
    limit: int | float,
    weights: AbstractContextManager[Any] | None = None,
) -> dict[str, float]:
    """Metrics of a split, each of its samples taken once, over all workers.

    Args:
        weights: a context with the weights to evaluate; None: those that strategy and callbacks choose.

    Returns:
        What the task logged, reduced over samples and workers; not yet handed to loggers.
    """
    stage = "validation" if split == "val" else "test"
    if limit == 0 or not overrides(state.task, f"{stage}_step"):
        return {}
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.flush_pending_updates(state.task)
    state.sample_keys.set(None)
    state.padding.now = False
    occasion = "sanity check" if view_of(state).sanity_checking else split
    with _evaluating(state, split, weights):
        with heartbeat.phase(EVALUATION, occasion):
            observers = state.callback_hooks(CallbackContract.on_evaluation_batch) if weights is None else []
            _evaluate_batches(state, split, stage, limit, observers)
        with heartbeat.phase(SYNCHRONIZATION, occasion):
            values = state.log.epoch_values(state.fabric.strategy)
        if weights is None:
            state.metrics.update(values)
        with heartbeat.phase(CALLBACKS, occasion):
            state.hooks(f"on_{stage}_end")
    with heartbeat.phase(SYNCHRONIZATION):
        state.data.share_bad_samples(state.fabric)
    return values


def _evaluate_batches(
    state: RunState, split: Split, stage: str, limit: int | float, observers: Sequence[_BatchObserver]
) -> None:
    state.hooks(f"on_{stage}_start")
    state.hooks(f"on_{stage}_epoch_start")
    batches = limit_batches(limit, state.data.evaluation_steps(split), state.config)
    transfer, taken = batch_transfer(state), positional(getattr(state.task, f"{stage}_step"))
    all_samples = 0
    for index, (batch, samples) in enumerate(state.data.evaluation_batches(split, batches)):
        state.log.samples = samples
        heartbeat.beat()
        all_samples += samples
        batch = transfer(batch)
        with nullcontext() if samples else untouched_metrics(state.task):
            output = _evaluation_step(state, stage, taken, batch, index)
        if samples:
            for observe in observers:
                observe(state, split, index, output, batch)
    state.log.ended = True
    state.log.samples = all_samples  # what a hook logs now stands for all of them
    state.hooks(f"on_{stage}_epoch_end")


def validate(state: RunState) -> None:
    """Validate, and log the metrics."""
    limit = state.config.trainer.val_limit
    state.report(evaluate(state, "val", limit))
    state.validated_at = state.step
    for name, weights in state.contract.other_eval_weights(state.task):
        values = evaluate(state, "val", limit, weights)
        state.report({state.own_name(f"{metric}_{name}"): value for metric, value in values.items()})


@contextmanager
def _evaluating(state: RunState, split: Split, weights: AbstractContextManager[Any] | None) -> Iterator[None]:
    """Evaluation mode, the weights to evaluate, and a log of its own; afterwards everything as it was."""
    training_log = state.log
    state.log = MetricLog(split, steps_by_default=False, owner=state.task, outer=training_log)
    seen, stage = view_of(state), "validating" if split == "val" else "testing"
    if seen.sanity_checking:
        stage = "sanity_checking"  # Lightning's Trainer is not validating then
    # Module by module: a task may keep its frozen layers in evaluation mode while it trains.
    modes = [(module, module.training) for module in state.module.modules()]
    was_training, seen.training = seen.training, False
    setattr(seen, stage, True)
    state.module.eval()
    try:
        with torch.no_grad(), EvalWeights(state) if weights is None else weights:
            yield
    finally:
        for module, training in modes:
            module.training = training
        seen.training = was_training
        if stage != "sanity_checking":
            setattr(seen, stage, False)
        state.log = training_log


def _evaluation_step(state: RunState, stage: str, taken: int, batch: Any, index: int) -> Any:
    state.hooks(f"on_{stage}_batch_start", batch, index)
    output = run_step(state, f"{stage}_step", *(batch, index)[:taken])
    state.hooks(f"on_{stage}_batch_end", output, batch, index)
    return output
