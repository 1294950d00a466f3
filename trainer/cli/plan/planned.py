"""Plans of one command."""

from dataclasses import dataclass, field

from ...base.errors import ConfigError
from ...planner.plans import TrainingPlan


@dataclass
class Planned:
    """Plans of a command, the fastest first, and what could not be planned."""

    plans: list[TrainingPlan] = field(default_factory=list)
    refused: list[tuple[tuple[str, ...], ConfigError]] = field(default_factory=list)
    over: dict[int, list[str]] = field(default_factory=dict)
    """What exceeds the budget, by the number of the plan."""
