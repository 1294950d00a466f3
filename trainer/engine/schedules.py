"""Learning-rate schedules: advancing one by the metric that it monitors."""

import torch

from ..base.errors import NotLogged
from ..base.log import log
from ..core.configure_optimizers import ScheduleEntry
from ..core.state import RunState


def advance(state: RunState, entry: ScheduleEntry, just_logged: dict[str, float] | None = None) -> None:
    """Step a schedule.

    Args:
        just_logged: metrics of the present step, which count before those reported earlier; None: at an epoch's end.

    Raises:
        NotLogged: the metric that it monitors was not logged, and the schedule is strict.
    """
    value = None
    if entry.monitor is not None:
        # suffixed where it is logged both by step and by epoch
        suffix = "_epoch" if just_logged is None else "_step"
        metrics = {**state.metrics, **(just_logged or {})}
        name = next((name for name in (entry.monitor, f"{entry.monitor}{suffix}") if name in metrics), None)
        if name is None:
            missing = NotLogged("schedule.monitor", entry.monitor, metrics)
            if entry.strict:
                raise missing
            log.warning("%s: the learning rate stays", missing)
            return
        value = torch.tensor(metrics[name], dtype=torch.float64)
    state.task.lr_scheduler_step(entry.scheduler, value)
