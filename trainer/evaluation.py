"""The one evaluation loop, and running one of the task's steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning.fabric.plugins import MixedPrecision
from torchmetrics import Metric

from .lightning_module import batch_transfer, overrides, positional
from .metric_log import MetricLog
from .pulse import CALLBACKS, EVALUATION, MEETING, pulse
from .state import RunState, limited
from .trainer_view import TrainerView


def evaluate(
    state: RunState,
    split: Literal["val", "test"],
    limit: int | float,
    weights: AbstractContextManager[Any] | None = None,
) -> dict[str, float]:
    """Every sample of a split once, over all workers, with the weights that are to be judged.

    Args:
        weights: a context with others.

    Returns:
        What the task logged, reduced over samples and workers; not yet handed to loggers.
    """
    stage = "validation" if split == "val" else "test"
    if limit == 0 or not overrides(state.task, f"{stage}_step"):
        return {}
    pulse.at(MEETING, state.step)
    state.contract.settle(state.task)
    state.sample_keys.set(None)
    state.padding.now = False
    with _evaluating(state, split, weights):
        pulse.at(EVALUATION, state.step)
        state.hooks(f"on_{stage}_start")
        state.hooks(f"on_{stage}_epoch_start")
        batches = limited(limit, state.data.evaluation_steps(split), state.config)
        transfer, taken = batch_transfer(state), positional(getattr(state.task, f"{stage}_step"))
        observers = _observers(state) if weights is None else []
        seen = 0
        for index, (batch, samples) in zip(range(batches), state.data.evaluation_batches(split), strict=False):
            state.log.samples = samples
            pulse.at(EVALUATION, state.step)
            seen += samples
            batch = transfer(batch)
            with nullcontext() if samples else untouched_metrics(state):
                output = _evaluation_step(state, stage, taken, batch, index)
            if samples:
                for observe in observers:
                    observe(state, split, index, output, batch)
        state.log.ended = True
        state.log.samples = seen  # what a hook logs now stands for all of them
        state.hooks(f"on_{stage}_epoch_end")
        pulse.at(MEETING, state.step)
        values = state.log.epoch_values(state.fabric.strategy)
        if weights is None:
            state.metrics.update(values)
        pulse.at(CALLBACKS, state.step)
        state.hooks(f"on_{stage}_end")
    pulse.at(MEETING, state.step)
    state.data.share_bad_samples(state.fabric)
    pulse.at(CALLBACKS, state.step)
    return values


def validate(state: RunState) -> None:
    """Validate, and log what comes of it."""
    limit = state.config.trainer.val_limit
    state.report(evaluate(state, "val", limit))
    state.validated_at = state.step
    for name, weights in state.contract.others_judged(state.task):
        values = evaluate(state, "val", limit, weights)
        state.report({f"{metric}_{name}": value for metric, value in values.items()})


@contextmanager
def _evaluating(
    state: RunState, split: Literal["val", "test"], weights: AbstractContextManager[Any] | None
) -> Iterator[None]:
    """Evaluation mode, the weights to be judged, and a log of its own; afterwards everything as it was."""
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
        with torch.no_grad(), _judged_weights(state) if weights is None else weights:
            yield
    finally:
        for module, training in modes:
            module.training = training
        seen.training = was_training
        if stage != "sanity_checking":
            setattr(seen, stage, False)
        state.log = training_log


def _observers(state: RunState) -> list[Callable[..., None]]:
    """Callbacks that look at what the task's step returns."""
    return [c.on_evaluation_batch for c in state.callbacks.values() if hasattr(c, "on_evaluation_batch")]


def _evaluation_step(state: RunState, stage: str, taken: int, batch: Any, index: int) -> Any:
    state.hooks(f"on_{stage}_batch_start", batch, index)
    output = run_step(state, f"{stage}_step", *(batch, index)[:taken])
    state.hooks(f"on_{stage}_batch_end", output, batch, index)
    return output


def run_step(state: RunState, step: str, *arguments: Any) -> Any:
    """One of the task's steps, through the strategy's wrapper and in the run's precision.

    What Fabric's own wrapper adds to this costs 20 microseconds a step and rounds a float64 loss to float32.
    """
    precision = state.fabric.strategy.precision
    if not isinstance(precision, MixedPrecision):
        # Mixed precision leaves the batch alone, as Lightning's Trainer does; Fabric would round float labels as well.
        arguments = precision.convert_input(arguments)
    with precision.forward_context():
        return state.module._forward_module(step, *arguments)


class _judged_weights:
    """The weights that strategy and callbacks (an EMA, say) want to be judged, for as long as the context lasts."""

    def __init__(self, state: RunState):
        self._contexts = [state.contract.evaluated(state.task)]
        self._contexts += [c.evaluated(state) for c in state.callbacks.values() if hasattr(c, "evaluated")]

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


class untouched_metrics:
    """Metric objects forget what happens inside: a stand-in sample must not count."""

    def __init__(self, state: RunState):
        self._metrics = [m for m in state.task.modules() if isinstance(m, Metric)]

    def __enter__(self) -> None:
        self._kept = [(m, m._copy_state_dict(), m._update_count) for m in self._metrics]

    def __exit__(self, *error: Any) -> None:
        for metric, state, updates in self._kept:
            for name, value in state.items():
                setattr(metric, name, value)
            metric._update_count = updates


def view_of(state: RunState) -> TrainerView:
    """What the task sees as its trainer."""
    seen = state.task.trainer
    assert isinstance(seen, TrainerView)
    return seen
