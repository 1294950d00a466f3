"""A measured run as the source of a plan's computation: `leyden plan --from RUN`. No torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.errors import refuse
from ..base.paths import shorten_path
from ..config.schema import Config, load
from ..runs.summary import read_summary
from .costs.cost_cache import without_folders
from .quantities import StepForecast

PHASES = ("data", "forward", "backward", "update", "communication", "other", "total")
_SLOWER = ("slower computation", "slowest worker")
"""What a forecast adds to computation while something is sent: a measured phase has it already."""


@dataclass(frozen=True)
class MeasuredRun:
    """Mean seconds of a run's steps, in its last session."""

    name: str
    config: Config
    steps: int
    seconds: dict[str, float]
    """Seconds by phase, see `PHASES`; communication is what computation waited for it."""

    @property
    def overhead(self) -> float:
        """Seconds of a step beside its computation and its waits for the network."""
        return max(0.0, self.seconds["data"]) + max(0.0, self.seconds["other"])


def read_run(folder: Path) -> MeasuredRun:
    """The times of a run.

    Raises:
        ConfigError: it has none.
    """
    key = "--from"
    if not folder.is_dir():
        raise refuse(
            key, "there is no such folder", shorten_path(folder), "--from RUN, the folder of a run that has trained"
        )
    try:
        config, summary = load(folder), read_summary(folder)
    except FileNotFoundError:
        raise refuse(
            key, "holds no run", shorten_path(folder), "--from RUN, the folder of a run that has trained"
        ) from None
    times: dict[str, Any] = summary.get("step_time") or {}
    sessions = summary.get("sessions") or [{}]
    steps = sessions[-1].get("steps") or 0
    if not steps or not times.get("total"):
        text = "has no times of steps in its summary.json: it has not trained to an end, or not yet"
        raise refuse(key, text, shorten_path(folder), "--from another run, or `leyden resume` this one")
    return MeasuredRun(shorten_path(folder), config, steps, {phase: times[phase] / steps for phase in PHASES})


def same_computation(one: Config, other: Config) -> bool:
    """Whether a sample costs two configs the same arithmetic, by the same kernels."""
    return _computes(one) == _computes(other)


def _computes(config: Config) -> tuple[Any, ...]:
    nodes = [config.model, config.task, config.optimizer]
    trainer = config.trainer
    ways = trainer.precision, trainer.compile, trainer.channels_last, trainer.activation_checkpointing
    data = {key: value for key, value in without_folders(config).items() if key in ("image_size", "image_shape")}
    return (*(_without_rates(node.model_dump(by_alias=True)) for node in nodes if node is not None), ways, data)


def _without_rates(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("lr", "pretrained", "lr_batch_size")}


def same_device(one: Config, other: Config) -> bool:
    """Whether two configs compute on the same kind of device, as far as their topologies say."""
    first, second = one.topology.device, other.topology.device
    figures = [(first.name, second.name), (first.memory_gb_s, second.memory_gb_s)]
    return first.kind == second.kind and all(None in pair or pair[0] == pair[1] for pair in figures)


def computing_share(forecast: StepForecast) -> float:
    """Share of a step's measured computation that it would take if nothing was sent beside it."""
    spent = dict(forecast.bound_by)
    computing = sum(spent.get(phase, 0.0) for phase in ("forward", "backward", "update"))
    slower = sum(spent.get(name, 0.0) for name in _SLOWER)
    return computing / (computing + slower) if computing else 1.0


def with_overhead(forecast: StepForecast, seconds: float, name: str) -> StepForecast:
    """The forecast with seconds more in every step."""
    if seconds <= 0:
        return forecast
    mean = forecast.mean + seconds
    shares = [(what, part * forecast.mean / mean) for what, part in forecast.bound_by] + [(name, seconds / mean)]
    return replace(
        forecast, mean=mean, worst=forecast.worst + seconds, low=forecast.low + seconds, high=forecast.high + seconds,
        bound_by=tuple(sorted(shares, key=lambda pair: -pair[1])),
    )  # fmt: skip
