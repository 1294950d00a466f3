"""Limits of a plan: `budget.gpu_hours=200` beside the overrides."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite

from ...base.errors import join_names, nearest, refuse
from ...compose.reference.yaml_library import Library
from ...planner.plans import TrainingPlan

_KEY = "budget"
_MISSING = {
    "gpu_hours": "dataset.assumed.train_samples",
    "hours": "dataset.assumed.train_samples",
    "cost": "topology.device.price_per_hour",
    "kwh": "topology.device.watts",
}
"""The key that gives what a limit needs."""


def divide_limits(words: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """Limits by unit, and the overrides of the config.

    Raises:
        ConfigError: an unknown unit, or no number.
    """
    budget: dict[str, float] = {}
    overrides: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == _KEY or key.startswith(f"{_KEY}."):
            budget[_unit(key, value)] = _limit(key, value)
        else:
            overrides.append(word)
    return budget, overrides


def _unit(key: str, value: str) -> str:
    units = [name.removeprefix(f"{_KEY}.") for name in Library().file("plan").keys if name != _KEY]
    unit = key.removeprefix(_KEY).removeprefix(".")
    if unit not in units:
        close = nearest(unit, units) if unit else "gpu_hours"
        text = (
            f"is an unknown unit: must be one of {join_names(units)}" if unit else f"needs a unit: {join_names(units)}"
        )
        raise refuse(key, text, value or ..., f"{_KEY}.{close or 'gpu_hours'}={value or 200}")
    return unit


def _limit(key: str, value: str) -> float:
    with suppress(ValueError):
        number = float(value)
        if isfinite(number) and number > 0:
            return number
    raise refuse(key, "must be a number greater than 0", value or ..., f"{key}=200")


def exceeded_limits(plan: TrainingPlan, budget: Mapping[str, float]) -> Iterator[str]:
    """What of a plan does not fit its budget, or its devices.

    Raises:
        ConfigError: a figure for a limit is missing.
    """
    for unit, limit in budget.items():
        value = getattr(plan.total, unit)
        if value is None and plan.steps is not None:
            raise refuse(_MISSING[unit], f"is not known, and budget.{unit} needs it", remedy=f"{_MISSING[unit]}=...")
        if value is None:
            text = f"is not known, so the training has no end, which budget.{unit} needs"
            raise refuse("dataset.assumed.train_samples", text, remedy="dataset.assumed.train_samples=...")
        if value > limit:
            yield f"budget.{unit}={limit:g}: the training takes {value:.4g}"
