"""Validation of a local-update strategy's config."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import Problem, join_names, nearest
from ...config.lightning.base_classes import class_overrides, is_module_class
from ...config.optimizer_class import needs_whole_parameters
from ...config.schema import Config
from ...config.targets import find, is_a, parameters_of
from ..execution import Execution, execution_of
from .delay_models import KINDS

_NODE = "strategy.execution"


def choice(config: Config, key: str, allowed: Sequence[str]) -> Iterator[Problem]:
    """A key of the strategy whose value is one of several words."""
    yield from _choice(f"strategy.{key}", config.strategy.arguments.get(key, allowed[0]), allowed)


def _choice(key: str, value: Any, allowed: Sequence[str]) -> Iterator[Problem]:
    if value not in allowed:
        close = nearest(str(value), allowed) or allowed[0]
        text = f"must be one of {join_names(allowed)}; did you mean {close}?"
        yield Problem(key, text, value, f"{key}={close}")


def at_least(config: Config, **least: int) -> Iterator[Problem]:
    """Keys of the strategy that are whole numbers with a lower bound."""
    for key, smallest in least.items():
        yield from _at_least(f"strategy.{key}", config.strategy.arguments.get(key, smallest), smallest)


def _at_least(key: str, value: Any, smallest: int) -> Iterator[Problem]:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        yield Problem(key, f"must be a whole number of at least {smallest}", value, f"{key}={max(1, smallest)}")


def local_update_problems(config: Config, asynchronous: bool) -> Iterator[Problem]:
    """Problems common to all local-update strategies."""
    name = config.strategy.target.rpartition(".")[2]
    if config.trainer.sync_batchnorm:
        text = f"needs all workers in every forward, and under strategy {name} they do not wait for each other"
        yield Problem("trainer.sync_batchnorm", text, True, "trainer.sync_batchnorm=false")
    if asynchronous and is_a(find("dataset", config.dataset), "LightningDataModule"):
        text = (
            "is a LightningDataModule: its loaders fix each worker's samples; asynchronous workers draw theirs from a "
            "work queue"
        )
        yield Problem(
            "dataset._target_", text, config.dataset.target, "strategy=local_sgd, or one of Leyden's datasets"
        )
    yield from _execution_problems(config, asynchronous)


def _execution_problems(config: Config, asynchronous: bool) -> Iterator[Problem]:
    options = execution_of(config.strategy.arguments)
    yield from _choice(f"{_NODE}.delay", options.delay, KINDS)
    for key in ("delay_ms", "slower", "link_mbit_s"):
        value = getattr(options, key)
        if value is not None and not value > 0:
            yield Problem(f"{_NODE}.{key}", "must be greater than 0", value, f"{_NODE}.{key}=100")
    if options.servers is not None:
        yield from _at_least(f"{_NODE}.servers", options.servers, 1)
    if options.simulate:
        yield from _simulation_problems(config)
    elif options.replay:
        yield Problem(f"{_NODE}.replay", "is for simulations", options.replay, f"{_NODE}.simulate=true")
    yield from _recording_problems(config, options, asynchronous)
    if options.elastic:
        yield from _elastic_problems(config, options, asynchronous)


def _simulation_problems(config: Config) -> Iterator[Problem]:
    if config.dataset.num_workers > 0:
        text = "a simulation reads each sample when a simulated worker needs it: nothing can be prefetched"
        yield Problem("dataset.num_workers", text, config.dataset.num_workers, "dataset.num_workers=0")
    if config.trainer.precision == "16-mixed":
        text = "one loss scaler would serve all simulated workers"
        yield Problem("trainer.precision", text, "16-mixed", "trainer.precision=bf16-mixed")


def _elastic_problems(config: Config, options: Execution, asynchronous: bool) -> Iterator[Problem]:
    if not asynchronous:
        text = "needs servers, through which workers communicate"
        yield Problem(f"{_NODE}.elastic", text, True, "strategy.form=server")
    for key in ("record", "validate_workers"):
        if getattr(options, key):
            text = "involves every worker, and with elastic=true workers may be missing"
            yield Problem(f"{_NODE}.{key}", text, True, f"{_NODE}.{key}=false")
    if config.schedule is not None and config.schedule.monitor is not None:
        text = "a worker that joins later does not know the earlier metrics, which this schedule depends on"
        yield Problem("schedule.monitor", text, config.schedule.monitor, "schedule=cosine")


def _recording_problems(config: Config, options: Execution, asynchronous: bool) -> Iterator[Problem]:
    several = config.servers > 1 or (options.servers or 1) > 1
    for key, off in (("record", "false"), ("replay", "null")):
        value = getattr(options, key)
        if value and (not asynchronous or several):
            text = "the order of events is that of one server: it needs form=server and servers=1"
            yield Problem(f"{_NODE}.{key}", text, value, f"{_NODE}.{key}={off}")
    if options.replay and not Path(options.replay).expanduser().is_file():
        text = f"there is no such file; {_NODE}.record=true writes RUN/events.csv"
        yield Problem(f"{_NODE}.replay", text, options.replay, f"{_NODE}.replay=RUN/events.csv")


def server_optimizer_problems(config: Config) -> Iterator[Problem]:
    """Problems of an optimizer that each server steps on its shard of one flat vector."""
    if config.trainer.precision == "16-mixed":
        text = "scales the loss on each worker by a factor of its own, and the servers add up the scaled gradients"
        yield Problem("trainer.precision", text, "16-mixed", "trainer.precision=bf16-mixed")
    task = find("task", config.task)
    if config.optimizer is None or not is_module_class(task) or class_overrides(task, "configure_optimizers"):
        text = "the servers step with the config's optimizer, and this task brings its own (or there is none)"
        yield Problem("strategy", text, "asgd", "strategy=easgd, whose workers step by themselves")
        return
    optimizer = find("optimizer", config.optimizer)
    if needs_whole_parameters(optimizer):
        name = config.optimizer.target.rpartition(".")[2]
        text = f"{name} needs whole parameters for its step, and servers hold parts of one vector"
        yield Problem("optimizer", text, config.optimizer.target, "optimizer=adamw")
    for key, given in (("groups", config.optimizer.groups), ("layer_decay", config.optimizer.layer_decay)):
        if given:
            text = "the servers step with the optimizer's own options alone"
            yield Problem(f"optimizer.{key}", text, None, "strategy=easgd, whose workers step by themselves")
    step = getattr(optimizer, "step", None)
    closure = parameters_of(step).get("closure") if step is not None else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = config.optimizer.target.rpartition(".")[2]
        text = f"{name}'s step needs a closure that computes the gradients again, which servers cannot"
        yield Problem("optimizer", text, config.optimizer.target, "optimizer=sgd")
