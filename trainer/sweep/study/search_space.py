"""Search space of a study: Hydra's sweep overrides as Optuna's distributions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from ...base.errors import ConfigError, refuse
from ...compose.composer import parse_overrides

_FORMS = "interval(a,b), tag(log,interval(a,b)), range(start,stop,step) or choice(a,b,...)"


@dataclass(frozen=True)
class SearchSpace:
    """Keys that are varied, and the overrides that all trials have."""

    distributions: dict[str, BaseDistribution]
    fixed: list[str]

    @classmethod
    def of(cls, params: Mapping[str, Any], typed: Sequence[str]) -> "SearchSpace":
        """Space of hydra.sweeper.params and of the command's overrides, which come after it.

        Raises:
            ConfigError: a key's values are not a space, or no key is varied.
        """
        overrides = parse_overrides([*(f"{key}={value}" for key, value in params.items()), *typed])
        last = {override.key_or_group: override for override in overrides}
        varied = {o.get_key_element(): _distribution(o) for o in last.values() if o.is_sweep_override()}
        if not varied:
            text = "the search space is empty: no key has several values"
            raise refuse("hydra/sweeper", text, "optuna", "'optimizer.lr=tag(log,interval(1e-4,1e-1))'")
        return cls(varied, [_as_typed(override) for override in last.values() if not override.is_sweep_override()])

    def overrides(self, point: Mapping[str, Any]) -> list[str]:
        """Overrides of the trial at a point of the space."""
        return [*(f"{key}={_spell(point[key])}" for key in self.distributions), *self.fixed]

    def describe_space(self) -> dict[str, str]:
        """Each key's distribution in JSON, as the journal keeps it."""
        return {key: distribution_to_json(distribution) for key, distribution in self.distributions.items()}


def _as_typed(override: Override) -> str:
    if override.is_delete():
        return str(override.input_line)
    return f"{override.get_key_element()}={override.get_value_element_as_str()}"


def _spell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _distribution(override: Override) -> BaseDistribution:
    value, key = override.value(), override.key_or_group
    try:
        if isinstance(value, IntervalSweep):
            return _interval(override, value)
        _refuse_tags(override, value, ())
        if isinstance(value, RangeSweep) and not value.shuffle:
            return _range(override, value)
        if isinstance(value, ChoiceSweep | RangeSweep):
            value.shuffle = False  # a sampler has its own order, and the space of a study must stay the same
            return CategoricalDistribution(_choices(override))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise refuse(key, f"is no search space: {error}", _text(override), _FORMS) from None
    raise refuse(key, "is no search space", _text(override), _FORMS)


def _text(override: Override) -> str:
    return str(override.input_line or "").partition("=")[2]


def _refuse_tags(override: Override, value: Any, allowed: Sequence[str]) -> None:
    for tag in sorted(set(getattr(value, "tags", None) or ()) - set(allowed)):
        text = f"the tag {tag} has no meaning here; an interval may have the tag log"
        raise refuse(override.key_or_group, text, _text(override), _FORMS)


def _interval(override: Override, value: IntervalSweep) -> BaseDistribution:
    _refuse_tags(override, value, ("log",))
    low, high, log = value.start, value.end, "log" in value.tags
    assert low is not None
    assert high is not None
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise refuse(override.key_or_group, "both ends must be finite, the lower first", _text(override), _FORMS)
    if log and low <= 0:
        text = "the lower end of an interval with the tag log must be over 0"
        raise refuse(override.key_or_group, text, _text(override), f"tag(log,interval(1e-6,{high}))")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _range(override: Override, value: RangeSweep) -> BaseDistribution:
    """The values of Hydra's grid sweep: `stop` is not among them."""
    start, stop, step = value.start, value.stop, value.step
    assert start is not None
    assert stop is not None
    count = math.ceil((stop - start) / step) if step else 0
    if count < 1:
        raise refuse(override.key_or_group, "the range is empty", _text(override), _FORMS)
    ends = sorted((start, start + (count - 1) * step))
    if all(isinstance(number, int) for number in (start, stop, step)):
        return IntDistribution(int(ends[0]), int(ends[1]), step=abs(int(step)))
    return FloatDistribution(float(ends[0]), float(ends[1]), step=abs(float(step)))


def _choices(override: Override) -> list[Any]:
    """Choices as the journal can keep them: what is no plain value, as text that Hydra parses back to it."""
    by_text = dict(zip(override.sweep_string_iterator(), override.sweep_iterator(), strict=True))
    return [v if v is None or isinstance(v, int | float) else text for text, v in by_text.items()]
