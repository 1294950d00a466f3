"""What must hold between keys, and between keys, classes and this machine, before anything starts."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .callbacks.lightning_refusals import is_lightning_callback, needs_a_logger, refusal
from .config import Config, Target
from .environment import not_on_this_machine, settings
from .errors import Problem, raise_all
from .hardware import Slurm
from .signatures import find, is_a, parameters_of, signature_problems
from .topology import CPU_WORKERS_PER_CORE, cores, device_kind, gpu_count
from .trainer_keys import trainer_keys

Check = Callable[[Config], Iterator[Problem]]


def check_values(config: Config, resumed: bool = False) -> None:
    """What must hold between keys, and between keys and this machine.

    Raises:
        ConfigError: with every mistake found.
    """
    plain: list[Check] = [
        _global_batch, _launcher, _hardware, _devices, _fabric, _strategy_workers, _precision, _partitions,
        _data_folder, _learning_rate, trainer_keys,
    ]  # fmt: skip
    if not resumed:
        plain.append(_init_from)
    raise_all(problem for rule in plain for problem in rule(config))


def check_classes(config: Config) -> None:
    """What must hold between keys and the classes that they name, which are imported here, and not built.

    Raises:
        ConfigError: with every mistake found.
    """
    raise_all(signature_problems(config))
    with_classes: list[Check] = [_dataset_class, _task_and_model, _monitor, _strategy_refuses, _callbacks]
    raise_all(problem for rule in with_classes for problem in rule(config))


_OWN_SHARES = (".spatial.Spatial", ".hybrid.Hybrid")
"""Strategies that cut the batch in a way of their own, and say themselves what they cannot cut."""


def _global_batch(config: Config) -> Iterator[Problem]:
    if config.strategy.target.endswith(_OWN_SHARES):
        return
    workers, parts = config.topology.workers, config.trainer.accumulate_grad_batches
    divisor = workers * parts
    if config.batch_size % divisor == 0:
        return
    below = config.batch_size // divisor * divisor
    factors = f"{workers} workers" + (f" x {parts} accumulate_grad_batches" if parts > 1 else "")
    remedy = " or ".join(f"batch_size={size}" for size in (below, below + divisor) if size)
    yield Problem("batch_size", f"is the global batch and must be divisible by {factors}", config.batch_size, remedy)


def _runs_here(config: Config) -> bool:
    """Whether workers run on the machine that judges the config: Slurm's login node has no GPU to be counted."""
    return config.launcher != "slurm"


def _launcher(config: Config) -> Iterator[Problem]:
    topology = config.topology
    if config.launcher == "slurm":
        yield from _slurm(topology.slurm)
    elif config.launcher == "local" and topology.nodes > 1 and not config.simulated:
        text = "launcher=local starts workers on this machine only"
        yield Problem("topology.nodes", text, topology.nodes, "topology.launcher=node, or topology.nodes=1")


def _slurm(slurm: Slurm) -> Iterator[Problem]:
    for key, value in slurm.model_dump(exclude={"setup"}).items():
        if "\n" in "".join(value if isinstance(value, list) else [str(value)]):
            yield Problem(f"topology.slurm.{key}", "must be without line breaks", value)
    for option in slurm.sbatch:
        if not option.startswith("-"):
            text = "must hold options of sbatch, each with its value, such as --mail-type=FAIL"
            yield Problem("topology.slurm.sbatch", text, option)
    if slurm.time_min is not None and slurm.signal_s >= 60 * slurm.time_min:
        text = f"must be less than the {60 * slurm.time_min} seconds that topology.slurm.time_min gives the job"
        remedy = f"topology.slurm.signal_s={30 * slurm.time_min}"
        yield Problem("topology.slurm.signal_s", text, slurm.signal_s, remedy)


def _hardware(config: Config) -> Iterator[Problem]:
    topology = config.topology
    sockets, key = topology.device.sockets, "topology.device.sockets"
    if sockets is not None and len(sockets) < topology.devices_per_node:
        text = f"must name the socket of each of the {topology.devices_per_node} devices of a node"
        yield Problem(key, text, sockets, f"{key}=null: workers run on any core")
    elif sockets and topology.host.sockets is not None and max(sockets) >= topology.host.sockets:
        text = f"sockets are counted from 0, and topology.host.sockets is {topology.host.sockets}"
        yield Problem(key, text, sockets, f"topology.host.sockets={max(sockets) + 1}")
    if topology.fabric.adapters and topology.fabric.kind not in ("infiniband", "roce"):
        text = "adapters belong to fabrics of kind infiniband or roce, and topology.fabric.kind is "
        text += "null" if topology.fabric.kind is None else topology.fabric.kind
        yield Problem("topology.fabric.adapters", text, topology.fabric.adapters, "topology.fabric.kind=infiniband")


def _devices(config: Config) -> Iterator[Problem]:
    if not _runs_here(config):
        return
    wanted, kind = config.topology.devices_per_node, device_kind(config.topology)
    if config.processes == 1:
        wanted = 1
    key = "topology.devices_per_node"
    if kind == "cuda" and not gpu_count():
        yield Problem("topology.device.kind", "there is no GPU that torch can use on this machine", "cuda",
                      "topology.device.kind=cpu")  # fmt: skip
    elif kind == "cuda" and wanted > gpu_count():
        there_are = f"this machine has {gpu_count()} GPU" + ("s" if gpu_count() > 1 else "")
        yield Problem(key, f"{there_are} (CUDA_VISIBLE_DEVICES counts)", wanted, f"{key}={gpu_count()}")
    elif kind == "cpu" and wanted > CPU_WORKERS_PER_CORE * cores():
        most = CPU_WORKERS_PER_CORE * cores()
        text = f"must be at most {most} on this CPU: {CPU_WORKERS_PER_CORE} for each of its {cores()} cores"
        yield Problem(key, text, wanted, f"{key}={cores()}")


def _fabric(config: Config) -> Iterator[Problem]:
    if _runs_here(config) and config.topology.workers > 1:
        yield from not_on_this_machine(settings(config.topology, device_kind(config.topology), os.environ))


def _strategy_workers(config: Config) -> Iterator[Problem]:
    if config.strategy.target.endswith(".strategies.single.Single") and config.topology.workers > 1:
        text = f"strategy=single trains on one worker, but the topology has {config.topology.workers}"
        yield Problem("strategy", text, "single", "strategy=ddp, which uses all of them")


def _precision(config: Config) -> Iterator[Problem]:
    precision = config.trainer.precision
    kind = device_kind(config.topology) if _runs_here(config) else config.topology.device.kind
    if precision.startswith("16-") and kind == "cpu":
        remedy = f"trainer.precision=bf16-{precision.removeprefix('16-')}"
        yield Problem("trainer.precision", "float16 needs a GPU, and these workers run on the CPU", precision, remedy)


def _partitions(config: Config) -> Iterator[Problem]:
    count, order = config.dataset.partitions, config.dataset.partition_order
    if order is None:
        return
    orders: Any = order if order and isinstance(order[0], list) else [order]
    if any(sorted(each) != list(range(count)) for each in orders):
        text = f"must name each of the {count} partitions (dataset.partitions) once, counted from 0"
        example = ",".join(map(str, range(count - 1, -1, -1))) if count <= 8 else "..."
        yield Problem("dataset.partition_order", text, order, f"dataset.partition_order=[{example}]")


def _data_folder(config: Config) -> Iterator[Problem]:
    for name in ("root", "path", "data_dir"):
        value = config.dataset.arguments.get(name)
        if isinstance(value, str) and "://" not in value and not Path(value).expanduser().exists():
            yield Problem(f"dataset.{name}", f"there is no such file or folder{_existing_part(value)}", value,
                          f"dataset.{name}=PATH of the data")  # fmt: skip


def _existing_part(path: str) -> str:
    """How much of a path exists, so that the wrong part of it is seen at once."""
    absolute = Path(path).expanduser().absolute()
    exists = next(parent for parent in absolute.parents if parent.exists())
    return f"; {exists} exists, {absolute.relative_to(exists).parts[0]!r} in it does not"


def _learning_rate(config: Config) -> Iterator[Problem]:
    rate = config.optimizer.arguments.get("lr", 1.0) if config.optimizer else 1.0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        yield Problem("optimizer.lr", "must be a number greater than 0", rate, "optimizer.lr=0.02")


def _init_from(config: Config) -> Iterator[Problem]:
    if config.init_from is not None and not Path(config.init_from).expanduser().exists():
        text = f"there is no such run folder or file{_existing_part(config.init_from)}"
        yield Problem("init_from", text, config.init_from, "init_from=RUN, a .ckpt or a .safetensors file")


def _class(key: str, node: Target) -> Any:
    found = find(key, node)
    assert not isinstance(found, Problem)  # signature_problems has seen it
    return found


def _dataset_class(config: Config) -> Iterator[Problem]:
    cls = _class("dataset", config.dataset)
    if not is_a(cls, "LightningDataModule") and "split" not in parameters_of(cls):
        text = 'must take split ("train", "val" or "test"), or be a LightningDataModule'
        yield Problem("dataset._target_", text, config.dataset.target)


def _task_and_model(config: Config) -> Iterator[Problem]:
    parameter = parameters_of(_class("task", config.task)).get("model")
    name = config.task.target.rpartition(".")[2]
    if config.model is not None and parameter is None and "model" not in config.task.arguments:
        text = f"the task {name} brings its own network (it takes no model), so this one would not be used"
        yield Problem("model", text, config.model.target, "model=null")
    required = parameter is not None and parameter.default is parameter.empty and "model" not in config.task.arguments
    if config.model is None and required:
        yield Problem("model", f"the task {name} needs a model", None, "model=lenet5")


def _monitor(config: Config) -> Iterator[Problem]:
    schedule = config.schedule
    if schedule is None:
        return
    watches = is_a(_class("schedule", schedule), "ReduceLROnPlateau")
    if watches and schedule.monitor is None:
        yield Problem("schedule.monitor", "ReduceLROnPlateau needs a metric to watch", None,
                      "schedule.monitor=val/loss schedule.interval=epoch")  # fmt: skip
    if schedule.monitor is not None and not watches:
        text = f"only ReduceLROnPlateau watches a metric, {schedule.target.rpartition('.')[2]} does not"
        yield Problem("schedule.monitor", text, schedule.monitor, "schedule.monitor=null")


def _strategy_refuses(config: Config) -> Iterator[Problem]:
    refuses = getattr(_class("strategy", config.strategy), "refuses", None)
    for found in refuses(config) if refuses else []:
        yield found if isinstance(found, Problem) else Problem("strategy", found, config.strategy.target)


def _callbacks(config: Config) -> Iterator[Problem]:
    """Lightning's callbacks that the loop cannot call."""
    for name, node in config.callbacks.items():
        if node is None:
            continue
        cls = _class(f"callbacks.{name}", node)
        if not is_lightning_callback(cls):
            continue
        refused = refusal(cls)
        if refused is not None:
            remedy = f"{refused.remedy}, without callbacks.{name}" if refused.remedy else "leave it out"
            yield Problem(f"callbacks.{name}", refused.text, node.target, remedy)
        elif needs_a_logger(cls) and not any(config.logger.values()):
            yield Problem(f"callbacks.{name}", "needs a logger, and there is none", node.target, "logger=default")
