"""Results of a LightningModule's configure_optimizers: optimizers and learning-rate schedules."""

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..base.log import log as run_log

_SCHEDULE_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "reduce_on_plateau", "name")


@runtime_checkable
class Ramped(Protocol):
    """A scheduler that monitors a metric, and has a second one, `ramp`, to be stepped at each optimizer step."""

    ramp: LRScheduler | None


@dataclass
class ScheduleEntry:
    """A learning-rate scheduler and the times of its steps."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    """Whether a monitored metric that was not logged ends the run; else the scheduler waits."""
    name: str | None = None
    """Name of the schedule in LearningRateMonitor."""
    reduce_on_plateau: bool = False
    """Whether the scheduler's step takes the monitored value."""
    counts_batches: bool = False
    """Whether frequency counts the batches of an epoch, as in Lightning, and not the optimizer steps of the run."""

    def due(self, step: int, batch: int) -> bool:
        """Whether a schedule with interval step is stepped after optimizer step `step`, at batch `batch` of the epoch,
        both counted from 1."""
        return self.interval == "step" and (batch if self.counts_batches else step) % self.frequency == 0


def read_configure_optimizers(returned: Any, task_name: str) -> tuple[Optimizer, list[ScheduleEntry]]:
    """Every form that LightningModule.configure_optimizers may return, for one optimizer.

    Raises:
        ValueError: no optimizer, several, or an unknown form.
    """
    optimizers, schedules = _parts(returned)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        raise ValueError(f"{task_name}.configure_optimizers must give exactly one optimizer, not {len(optimizers)}")
    closure = inspect.signature(type(optimizers[0]).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizers[0]).__name__
        raise ValueError(f"{task_name}.configure_optimizers gives {kind}, whose step needs a closure: not offered")
    return optimizers[0], [_schedule_entry(schedule) for schedule in schedules]


def _parts(returned: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(returned, dict):
        schedule = returned.get("lr_scheduler")
        if isinstance(schedule, dict) and "monitor" in returned:
            schedule = {"monitor": returned["monitor"], **schedule}
        elif schedule is not None and "monitor" in returned:
            schedule = {"scheduler": schedule, "monitor": returned["monitor"]}
        return [returned["optimizer"]], [] if schedule is None else [schedule]
    if isinstance(returned, (tuple, list)):
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            return list(returned[0]), list(returned[1])
        if returned and all(isinstance(item, dict) for item in returned):
            parts = [_parts(item) for item in returned]
            return [o for opts, _ in parts for o in opts], [s for _, scheds in parts for s in scheds]
        return list(returned), []
    return ([] if returned is None else [returned]), []


def _schedule_entry(returned: Any) -> ScheduleEntry:
    if not isinstance(returned, dict):
        returned = {"scheduler": returned}
    unknown = sorted(set(returned) - set(_SCHEDULE_KEYS))
    if unknown:
        run_log.warning("configure_optimizers: lr_scheduler has no key %s; it is ignored", ", ".join(unknown))
    known = {key: returned[key] for key in _SCHEDULE_KEYS if key in returned}
    entry = ScheduleEntry(**known, counts_batches=True)
    is_plateau = isinstance(entry.scheduler, ReduceLROnPlateau)
    entry.reduce_on_plateau = returned.get("reduce_on_plateau", is_plateau)
    if entry.reduce_on_plateau and entry.monitor is None:
        raise ValueError("ReduceLROnPlateau needs a metric to monitor: schedule.monitor, or 'monitor' next to it")
    if not entry.reduce_on_plateau:
        entry.monitor = None  # other schedulers would take the metric for an epoch number
    if entry.interval not in ("step", "epoch"):
        raise ValueError(f"lr_scheduler interval {entry.interval!r} is not one of step, epoch")
    return entry
