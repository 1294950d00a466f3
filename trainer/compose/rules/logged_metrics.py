"""Rule: what a callback, a schedule or the study of a sweep compares must be a metric that the task logs."""

from collections.abc import Iterator
from typing import Any

from ...base.errors import Problem, join_names
from ...config.schema import Config, Target
from ...config.targets import find, is_a
from ...core.task_contract import defines
from ..known_names import find_metric

_WATCHES = {"early_stopping": "EarlyStopping", "checkpoint": "Checkpoint"}
_USUAL_MONITOR = "val/acc"
"""Default monitor of the best checkpoints; a task without this metric keeps the newest."""


def monitored_metrics(config: Config) -> Iterator[Problem]:
    """Metrics that a callback or a schedule monitors and a task of Leyden's does not log."""
    watched = [(f"callbacks.{name}.monitor", node.arguments.get("monitor")) for name, node in config.callbacks.items()
               if node is not None and is_a(_class(f"callbacks.{name}", node), _WATCHES.get(name, ""))]  # fmt: skip
    watched.append(("schedule.monitor", config.schedule.monitor if config.schedule else None))
    for key, monitor in watched:
        if isinstance(monitor, str) and monitor != _USUAL_MONITOR:
            yield from unlogged_metric(config, key, monitor)


def unlogged_metric(config: Config, key: str, monitor: str) -> Iterator[Problem]:
    """The problem of a metric that a task of Leyden's does not log.

    Args:
        key: that names the metric.
    """
    names = _logged_names(config)
    if names is None or not _not_logged(monitor, names):
        return
    now = [name for name in names if not name.startswith("test/")]
    close = find_metric(monitor, now)
    task, meant = config.task.target.rpartition(".")[2], f"; did you mean {close}?" if close else ""
    yield Problem(
        key, f"is not logged{meant}\n{task} logs {join_names(now)}", monitor, f"{key}={close}" if close else ""
    )


def _logged_names(config: Config) -> list[str] | None:
    """Metrics that the task logs; None: its first validation shows them."""
    task_class = _class("task", config.task)
    if not defines(task_class, "LOGGED"):
        return None
    logged = {**task_class.LOGGED, **dict.fromkeys(task_class.more_logged(config.task.arguments), 1)}
    classes = config.dataset.arguments.get("classes", getattr(_class("dataset", config.dataset), "classes", None))
    return [name for name, least in logged.items() if not isinstance(classes, int) or classes >= least]


def _not_logged(monitor: str, names: list[str]) -> bool:
    """Whether neither the task nor the run logs a metric; metrics of strategies have other prefixes."""
    known = any(monitor == name or monitor.startswith(f"{name}_") for name in names if not name.startswith("test/"))
    prefix, slash, _ = monitor.partition("/")
    of_a_task = prefix in ("train", "val", "test", "valid", "validation", "eval") if slash else True
    return not known and of_a_task and monitor not in ("lr", "epoch")


def _class(key: str, node: Target) -> Any:
    found = find(key, node)
    assert not isinstance(found, Problem)  # signature_problems has seen it
    return found
