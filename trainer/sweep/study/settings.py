"""Settings of hydra/sweeper=optuna, validated without importing Optuna."""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...base.errors import Problem, raise_all, refuse
from ...compose.hydra_node import SWEEPER
from ..results import Metric

_DIRECTIONS = {"max": "maximize", "min": "minimize"}
_MODES = {direction: mode for mode, direction in _DIRECTIONS.items()}
_Count = Annotated[int, Field(ge=1)]


class StudySettings(BaseModel):
    """The node hydra.sweeper of hydra/sweeper=optuna."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    target: str = Field(alias="_target_")
    n_trials: _Count
    n_jobs: _Count
    metric: str | None
    direction: Literal["minimize", "maximize"] | None
    sampler: dict[str, Any]
    pruner: dict[str, Any]
    params: dict[str, Any]

    def compared_by(self, checkpoint: Mapping[str, Any]) -> Metric:
        """The metric that is optimized.

        Args:
            checkpoint: the node callbacks.checkpoint.

        Raises:
            ConfigError: its direction is unknown, or the opposite of the checkpoints'.
        """
        by = Metric.of(checkpoint)
        if self.metric in (None, by.name):
            if self.direction in (None, _DIRECTIONS[by.mode]):
                return by
            text = f"trials are compared by {by.name}, mode {by.mode}, as their checkpoints are (callbacks.checkpoint)"
            remedy = "leave it out, or callbacks.checkpoint.monitor=METRIC callbacks.checkpoint.mode=MODE"
            raise refuse("hydra.sweeper.direction", text, self.direction, remedy)
        if self.direction is None:
            text = f"is not the metric of callbacks.checkpoint, {by.name}: the direction must be given"
            raise refuse("hydra.sweeper.metric", text, self.metric, "hydra.sweeper.direction=minimize, or =maximize")
        return Metric(str(self.metric), _MODES[self.direction])


def is_study(sweep: DictConfig) -> bool:
    """Whether a composition chooses hydra/sweeper=optuna."""
    return (OmegaConf.select(sweep, "hydra.sweeper") or {}).get("_target_") == SWEEPER


def require_optuna() -> None:
    """
    Raises:
        ConfigError: Optuna is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise refuse("hydra/sweeper", "is not installed", "optuna", "pip install 'leyden[optuna]'")


def settings_of(sweep: DictConfig) -> StudySettings:
    """Settings of a composition that chooses hydra/sweeper=optuna.

    Raises:
        ConfigError: a key is wrong.
    """
    values = OmegaConf.to_container(sweep.hydra.sweeper, resolve=True)
    try:
        return StudySettings.model_validate(values)
    except ValidationError as error:
        raise_all(_problems(error, values))
        raise


def _problems(error: ValidationError, values: Any) -> Iterator[Problem]:
    for detail in error.errors():
        key = ".".join(map(str, detail["loc"]))
        value = values.get(detail["loc"][0], ...) if detail["loc"] else ...
        yield Problem(f"hydra.sweeper.{key}", detail["msg"].lower(), value)
