"""Rule: a schedule that compares a metric of the validation is not advanced before there was one."""

import re

from lightning.pytorch import LightningModule

from ..base.errors import CannotStart, Problem
from ..config.lightning.base_classes import overrides
from ..core.configure_optimizers import ScheduleEntry
from ..core.state import RunState
from .validation_schedule import ValidationSchedule

_OF_VALIDATION = re.compile("val(id|idation)?[/_]")
"""How the names of metrics begin that a task logs in its validation; what others mean, only their logging shows."""
_EVERY_EPOCH = "trainer.check_val_every_n_epoch=1 trainer.val_check_interval=null"


def refuse_monitor_before_validation(state: RunState, resumed: bool) -> None:
    """
    Args:
        resumed: whether the keys of the schedule are given, and only those of the trainer may change.

    Raises:
        CannotStart: a schedule would be advanced before the metric that it compares is there.
    """
    if not overrides(state.task, "validation_step"):
        return
    for entry in state.schedules:
        if entry.monitor is None or not entry.strict or not _OF_VALIDATION.match(entry.monitor):
            continue
        problem = _no_validation(state, entry) or _too_early(state, entry, resumed)
        if problem is not None:
            raise CannotStart(problem)


def _no_validation(state: RunState, entry: ScheduleEntry) -> Problem | None:
    limit = state.config.trainer.limit_val_batches
    if not state.config.trainer.val_limit:
        text = f"leaves nothing of the validation, whose {entry.monitor} the schedule compares"
        return Problem("trainer.limit_val_batches", text, limit, "trainer.limit_val_batches=1.0")
    if state.data.has("val"):
        return None
    text = "is a metric of the validation, and these data have none"
    return Problem("schedule.monitor", text, entry.monitor, "" if _is_own(state.task) else "schedule=constant")


def _too_early(state: RunState, entry: ScheduleEntry, resumed: bool) -> Problem | None:
    steps = state.steps_per_epoch
    validated = min(ValidationSchedule.of(state.config.trainer, steps).first_step, state.total_steps)
    epochs = -(-validated // steps)
    if entry.interval == "epoch":
        fits, when = entry.frequency >= epochs, f"after epoch {entry.frequency}"
    else:
        parts = state.config.trainer.accumulate_grad_batches if entry.counts_batches else 1
        first = -(-entry.frequency // parts)
        fits, when = first > min(validated, state.total_steps - 1), f"at step {first}"
    if fits:
        return None
    text = f"has {entry.monitor} compared {when}, and the first validation is after step {validated}, in epoch {epochs}"
    return _at_fault(state.task, entry, text, epochs, resumed)


def _at_fault(task: LightningModule, entry: ScheduleEntry, text: str, epochs: int, resumed: bool) -> Problem:
    """The problem of a schedule that is right with its epochs for an interval."""
    by_epoch, every = entry.interval == "epoch", f"schedule.frequency={epochs}"
    if _is_own(task):
        own = f"'interval': 'epoch', 'frequency': {epochs} next to 'monitor' in configure_optimizers"
        return Problem("task", f"its schedule {text}", remedy=_EVERY_EPOCH if by_epoch else own)
    if resumed:
        return Problem("schedule.frequency", text, entry.frequency, _EVERY_EPOCH if by_epoch else "")
    remedy = every if by_epoch else f"schedule.interval=epoch {every}"
    return Problem("schedule.frequency", text, entry.frequency, remedy)


def _is_own(task: LightningModule) -> bool:
    """Whether the schedule is the task's own, which no key changes."""
    return overrides(task, "configure_optimizers")
