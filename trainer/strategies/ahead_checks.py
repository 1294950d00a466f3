"""What strategies whose workers run ahead cannot do, from the config alone."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config import Config
from ..errors import Problem, listed, nearest
from ..lightning_packages import class_overrides, is_module_class
from ..signatures import find, is_a, parameters_of
from .delays import KINDS


def choice(config: Config, key: str, allowed: Sequence[str]) -> Iterator[Problem]:
    """A key of the strategy that takes one of some words."""
    value = config.strategy.arguments.get(key, allowed[0])
    if value not in allowed:
        close = nearest(str(value), allowed) or allowed[0]
        text = f"must be one of {listed(allowed)}; did you mean {close}?"
        yield Problem(f"strategy.{key}", text, value, f"strategy.{key}={close}")


def fewest(config: Config, **least: int) -> Iterator[Problem]:
    """Keys of the strategy that are whole numbers of at least so much."""
    for key, smallest in least.items():
        value = config.strategy.arguments.get(key, smallest)
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            text = f"must be a whole number of at least {smallest}"
            yield Problem(f"strategy.{key}", text, value, f"strategy.{key}={max(1, smallest)}")


def few_servers(config: Config) -> Iterator[Problem]:
    """`servers` is a whole number, or null for what the topology says."""
    if config.strategy.arguments.get("servers") is not None:
        yield from fewest(config, servers=1)


def refused_ahead(config: Config, by_own_clocks: bool) -> Iterator[Problem]:
    """What holds for all of them."""
    name = config.strategy.target.rpartition(".")[2]
    if config.trainer.sync_batchnorm:
        text = f"needs all workers in every forward, and under strategy {name} they do not wait for each other"
        yield Problem("trainer.sync_batchnorm", text, True, "trainer.sync_batchnorm=false")
    if by_own_clocks and is_a(find("dataset", config.dataset), "LightningDataModule"):
        text = (
            "is a LightningDataModule: its loaders give each worker its samples; here the next free worker takes them"
        )
        yield Problem(
            "dataset._target_", text, config.dataset.target, "strategy=local_sgd, or one of Leyden's datasets"
        )
    yield from _refused_clock(config, by_own_clocks)


def _refused_clock(config: Config, by_own_clocks: bool) -> Iterator[Problem]:
    given = config.strategy.arguments
    yield from choice(config, "delay", KINDS)
    for key, least in (("delay_ms", 0.0), ("slower", 0.0), ("link_mbit_s", 0.0)):
        value = given.get(key)
        if value is not None and not value > least:
            yield Problem(f"strategy.{key}", "must be greater than 0", value, f"strategy.{key}=100")
    if given.get("simulate"):
        if config.dataset.num_workers > 0:
            text = "a simulation reads each sample when its turn comes: nothing can be read ahead"
            yield Problem("dataset.num_workers", text, config.dataset.num_workers, "dataset.num_workers=0")
        if config.trainer.precision == "16-mixed":
            text = "one scaler would serve all virtual workers"
            yield Problem("trainer.precision", text, "16-mixed", "trainer.precision=bf16-mixed")
    elif given.get("replay"):
        yield Problem("strategy.replay", "is for simulations", given["replay"], "strategy.simulate=true")
    yield from _refused_recording(config, by_own_clocks)
    if given.get("elastic"):
        yield from _refused_elastic(config, by_own_clocks)


def _refused_elastic(config: Config, by_own_clocks: bool) -> Iterator[Problem]:
    given = config.strategy.arguments
    if not by_own_clocks:
        yield Problem("strategy.elastic", "needs servers, through which workers know each other", True,
                      "strategy.form=server")  # fmt: skip
    for key in ("record", "validate_workers"):
        if given.get(key):
            text = "asks for something of every worker, and with elastic=true they come and go"
            yield Problem(f"strategy.{key}", text, True, f"strategy.{key}=false")
    if config.schedule is not None and config.schedule.monitor is not None:
        text = "a worker that joins later does not know the metrics of before, which this schedule goes by"
        yield Problem("schedule.monitor", text, config.schedule.monitor, "schedule=cosine")


def _refused_recording(config: Config, by_own_clocks: bool) -> Iterator[Problem]:
    given = config.strategy.arguments
    replay = given.get("replay")
    for key in ("record", "replay"):
        several = config.servers > 1 or (given.get("servers") or 1) > 1
        if given.get(key) and (not by_own_clocks or several):
            text = "the order of events is that of one server: it needs form=server and servers=1"
            yield Problem(f"strategy.{key}", text, given[key], f"strategy.{key}={'null' if replay else 'false'}")
    if replay and not Path(replay).expanduser().is_file():
        text = "there is no such file; strategy.record=true writes RUN/events.csv"
        yield Problem("strategy.replay", text, replay, "strategy.replay=RUN/events.csv")


def refused_server_optimizer(config: Config) -> Iterator[Problem]:
    """The servers step the config's optimizer, each on its piece of one long vector."""
    if config.trainer.precision == "16-mixed":
        text = "scales the loss on each worker by a factor of its own, and the servers add up what they get"
        yield Problem("trainer.precision", text, "16-mixed", "trainer.precision=bf16-mixed")
    task = find("task", config.task)
    if config.optimizer is None or not is_module_class(task) or class_overrides(task, "configure_optimizers"):
        text = "the servers step with the config's optimizer, and this task brings its own (or there is none)"
        yield Problem("strategy", text, "asgd", "strategy=easgd, whose workers step by themselves")
        return
    step = getattr(find("optimizer", config.optimizer), "step", None)
    closure = parameters_of(step).get("closure") if step is not None else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = config.optimizer.target.rpartition(".")[2]
        text = f"{name}'s step needs a closure that computes the gradients again, which servers cannot"
        yield Problem("optimizer", text, config.optimizer.target, "optimizer=sgd")
