"""Renamed import paths and keys in frozen runs, YAML and overrides of release 0.1, accepted for one more release."""

from collections.abc import Iterator, Mapping
from typing import Any

RENAMED_TARGETS = {
    f"leyden.trainer.{old}": f"leyden.trainer.{new}"
    for old, new in {
        "callbacks.checkpoint.Checkpoint": "components.callbacks.checkpoint.Checkpoint",
        "callbacks.confusion_matrix.ConfusionMatrix": "components.callbacks.confusion_matrix.ConfusionMatrix",
        "callbacks.early_stopping.EarlyStopping": "components.callbacks.early_stopping.EarlyStopping",
        "callbacks.ema.EMA": "components.callbacks.ema.EMA",
        "callbacks.progress.Progress": "components.callbacks.progress.Progress",
        "callbacks.train_images.TrainImages": "components.callbacks.train_images.TrainImages",
        "loggers.csv.MetricsCSV": "components.loggers.csv.MetricsCSV",
        "loggers.tensorboard.TensorBoard": "components.loggers.tensorboard.TensorBoard",
        "reconstruction.Reconstruction": "components.tasks.reconstruction.Reconstruction",
        "schedule.WarmupCosine": "components.lr_schedules.WarmupCosine",
        "task.Classification": "components.tasks.classification.Classification",
        "task_loaders.TaskLoaders": "data.task_loaders.TaskLoaders",
    }.items()
}

_RENAMED_TAGS = {"ahead/": "local_update/"}
"""First parts of metrics' names, which a run may monitor."""
_LOCAL_UPDATE = tuple(
    f"leyden.trainer.strategies.{name}" for name in ("asgd.ASGD", "easgd.EASGD", "local_sgd.LocalSGD")
)
_EXECUTION_KEYS = (
    "servers", "elastic", "validate_workers", "record", "simulate", "delay", "delay_ms", "slower", "link_mbit_s",
    "replay",
)  # fmt: skip
"""Keys of strategy.execution that were keys of strategy."""


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of a run's plain values with every old `_target_`, monitor and key replaced."""
    new = _with_new_values(values)
    strategy = new.get("strategy")
    old = _old_execution(strategy)
    if old:
        kept = {key: value for key, value in strategy.items() if key not in old}
        new["strategy"] = {**kept, "execution": {**(strategy.get("execution") or {}), **old}}
    return new


def _with_new_values(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _new_value(key, value) or _with_new_values(value) for key, value in values.items()}
    return [_with_new_values(value) for value in values] if isinstance(values, list) else values


def _new_value(key: Any, value: Any) -> str | None:
    """The new name that an import path or a metric has; None: it is not renamed."""
    if not isinstance(value, str):
        return None
    if key == "monitor":
        return next((new + value[len(old) :] for old, new in _RENAMED_TAGS.items() if value.startswith(old)), None)
    return RENAMED_TARGETS.get(value) if key == "_target_" else None


def _old_execution(strategy: Any) -> dict[str, Any]:
    """Options of strategy.execution that stand in a strategy's node itself."""
    if not isinstance(strategy, Mapping):
        return {}
    if strategy.get("_target_") not in _LOCAL_UPDATE and not isinstance(strategy.get("execution"), Mapping):
        return {}
    return {key: strategy[key] for key in _EXECUTION_KEYS if key in strategy}


def renamed_in(values: Mapping[str, Any]) -> Iterator[str]:
    """One line for each old name among a run's plain values."""
    yield from _renamed_values(values)
    for key in _old_execution(values.get("strategy")):
        yield f"strategy.{key} is strategy.execution.{key} now; the old name goes with the next release"


def _renamed_values(values: Any, key: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            full = f"{key}.{name}" if key else str(name)
            new = _new_value(name, value)
            if new is not None:
                yield f"{full}: {value} is {new} now; the old name goes with the next release"
            yield from _renamed_values(value, full)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _renamed_values(value, f"{key}.{number}")
