"""A few validation batches before the training: trainer.num_sanity_val_steps."""

from ..base import rng
from ..core.state import RunState, limit_batches
from ..core.trainer_view.view import view_of
from .evaluate import evaluate
from .step_module import untouched_metrics


def sanity_check(state: RunState) -> None:
    """Try the validation of a training that begins, so that a mistake in it shows before an epoch is spent.

    Its values are dropped; random numbers and Metric objects are afterwards what they were. As under Lightning's
    Trainer a resumed training is not checked.
    """
    trainer = state.config.trainer
    begun = state.step > 0 or state.resumed_from is not None
    if trainer.num_sanity_val_steps == 0 or begun or trainer.fast_dev_run or not state.data.has("val"):
        return
    steps = limit_batches(trainer.val_limit, state.data.evaluation_steps("val"), state.config)
    if trainer.num_sanity_val_steps > 0:
        steps = min(steps, trainer.num_sanity_val_steps)
    view = view_of(state)
    kept, metrics = rng.capture(state.fabric.device), dict(state.metrics)
    view.sanity_checking = True
    state.hooks("on_sanity_check_start")
    try:
        with untouched_metrics(state.task):
            evaluate(state, "val", steps)
    finally:
        view.sanity_checking = False
        state.metrics = metrics
        rng.restore(kept, state.fabric.device)
    state.hooks("on_sanity_check_end")
    view.training = True  # the check has ended it
