"""What was planned of a run beside what was measured, at its end."""

from collections.abc import Mapping
from typing import Any

from ..base.errors import ConfigError
from ..base.log import log
from ..config.schema import Config
from ..core.step_timer import StepTimes
from ..planner.kept_plans import newest_plan
from ..planner.plans import summarize

LONG_S = 60.0
"""Seconds of training from which counting a step anew, a second or two, is not noticed."""


def planned_beside_measured(config: Config, times: StepTimes) -> dict[str, Any] | None:
    """The plan that `leyden plan` has made of this config, or one made now, and the mean step of this session.

    Returns:
        None: nothing is known of the device, or the run was too short to count its step for this alone.
    """
    if not times.steps:
        return None
    planned = newest_plan(config) or (_plan_now(config) if times.total >= LONG_S else None)
    if planned is None:
        return None
    measured = {
        "measured_ms": 1e3 * times.total / times.steps,
        "measured_exposed_ms": 1e3 * times.communication / times.steps,
    }
    return {**planned, **measured}


def _plan_now(config: Config) -> Mapping[str, Any] | None:
    from ..planner.plan import plan

    try:
        return summarize(plan(config))
    except ConfigError:  # a figure is missing, or fake tensors cannot run the network
        return None
    except Exception as error:  # the run is over, and its summary not written yet
        log.warning("its step could not be planned: %s: %s", type(error).__name__, error)
        return None


def planned_line(found: Mapping[str, Any]) -> str:
    """One line: planned and measured time of a step, and of it what waits for the network."""
    planned, measured = found["step_ms"], found["measured_ms"]
    step = f"planned {_ms(planned)} ms ({_ms(found['low_ms'])}-{_ms(found['high_ms'])}), measured {_ms(measured)} ms"
    exposed = f"planned {_ms(found['exposed_ms'])}, measured {_ms(found['measured_exposed_ms'])}"
    return f"{step} ({measured / planned - 1:+.0%}); exposed communication {exposed}"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
