"""Cross-field rules: between keys, and between keys, classes and this machine, before anything starts."""

import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from ..base.errors import ConfigError, Problem, nearest, raise_all
from ..base.paths import exists
from ..config.faults import fault
from ..config.lightning.base_classes import class_overrides, is_data_module_class, is_module_class
from ..config.lightning.callbacks import is_lightning_callback, needs_a_logger, refusal
from ..config.lightning.trainer_attributes import TRAINER_ATTRIBUTES
from ..config.lightning.trainer_uses import uses
from ..config.schema import DATA_FOLDERS, TASK_LOADERS, Config, Target, with_processes, workers_on_node
from ..config.strategy_class import StrategyDeclarations, declarations_before_import, declarations_of, hook_problems
from ..config.targets import find, is_a, parameters_of
from ..core.callback_contract import ValidatesConfig
from ..hardware.comm_env import missing_hardware, settings
from ..hardware.topology import CPU_WORKERS_PER_CORE, cores, device_kind, gpu_count, shares_gpus
from .rules.contrastive import contrastive
from .rules.fine_tuning import existing_part, frozen_parameters, initial_weights, teacher_problems, unfreezing
from .rules.hook_names import misspelt_hooks
from .rules.launcher_checks import external_launcher, local_launcher, slurm_launcher
from .rules.logged_metrics import monitored_metrics
from .rules.optimizer_checks import divided_parameters, group_options, schedule_problems
from .rules.trainer_keys import elastic_max_time, trainer_keys
from .signatures import refused_names, signature_problems

Check = Callable[[Config], Iterator[Problem]]


def check_values(config: Config, resumed: bool = False, planned: bool = False) -> None:
    """Check the rules between keys, and between keys and this machine.

    Args:
        planned: nothing is to be started, so that this machine need have neither devices nor data.

    Raises:
        ConfigError: with every mistake found.
    """
    raise_all(refused_names(config))
    plain: list[Check] = [
        slurm_launcher, _hardware, _fabric, _precision, _partitions, _shuffle, _data_folder, _cache, _learning_rate,
        _momentum, trainer_keys, frozen_parameters,
    ]  # fmt: skip
    if config.processes is not None:
        plain = [*_BY_STRATEGY, *plain]
    if not resumed:
        plain += [initial_weights, teacher_problems]
    raise_all(problem for rule in plain if not (planned and rule in _OF_THIS_MACHINE) for problem in rule(config))


def check_classes(config: Config, planned: bool = False) -> Config:
    """Check the rules between keys and the classes that they name. Imports the classes, builds none.

    Args:
        planned: as of `check_values`.

    Returns:
        The config with the processes declared by its strategy's class.

    Raises:
        ConfigError: with every mistake found.
    """
    raise_all(signature_problems(config))
    if config.processes is None:
        raise_all(hook_problems(_class("strategy", config.strategy)))
        try:
            config = with_processes(config)
        except Exception as error:  # the class is the user's
            raise ConfigError(fault("strategy", config.strategy, error)) from error
        rules = [rule for rule in _BY_STRATEGY if not (planned and rule in _OF_THIS_MACHINE)]
        raise_all(problem for rule in rules for problem in rule(config))
    with_classes: list[Check] = [
        _dataset_class, _task_and_model, _task_loaders, _trainer_uses, _schedule_rules, monitored_metrics, _loggers,
        misspelt_hooks, _strategy_config, _contrastive, _callback_configs, _lightning_callbacks, _optimizer_rules,
    ]  # fmt: skip
    raise_all(problem for rule in with_classes for problem in rule(config))
    return config


def slow_settings(config: Config) -> Iterator[Problem]:
    """Problems of a config that runs, but slowly: for warnings."""
    topology, readers = config.topology, config.dataset.num_workers
    host = topology.host
    available = cores() if _runs_here(config) else (host.sockets or 0) * (host.cores_per_socket or 0)
    workers = 1 if config.simulated else topology.devices_per_node
    if available and readers > 1 and readers * workers > available:
        text = f"are {readers * workers} processes that read ahead on a node of {available} cores"
        if workers > 1:
            text += f": {readers} for each of its {workers} workers"
        yield Problem("dataset.num_workers", text, readers, f"dataset.num_workers={available // workers}")


def _check_declared(config: Config) -> type[StrategyDeclarations]:
    return declarations_before_import(config.strategy.target) or declarations_of(_class("strategy", config.strategy))


def _global_batch(config: Config) -> Iterator[Problem]:
    # what trains nothing itself (a pipeline, the doctor) has no batch: a pipeline's trials have theirs
    if config.pipeline is not None or config.doctor is not None or not _check_declared(config).needs_divisible_batch:
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
    """Whether workers run on this machine: on a login node of Slurm no GPU can be counted, nor for pods elsewhere."""
    return config.launcher != "slurm" and not config.topology.in_pods


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
    wanted, kind = workers_on_node(config), device_kind(config.topology)
    key = "topology.devices_per_node"
    if kind == "cuda" and not gpu_count():
        yield Problem("topology.device.kind", "there is no GPU that torch can use on this machine", "cuda",
                      "topology.device.kind=cpu")  # fmt: skip
    elif kind == "cuda" and wanted > gpu_count() and not shares_gpus():
        available = f"this machine has {gpu_count()} GPU" + ("s" if gpu_count() > 1 else "")
        yield Problem(key, f"{available} (CUDA_VISIBLE_DEVICES counts)", wanted, f"{key}={gpu_count()}")
    elif kind == "cpu" and wanted > CPU_WORKERS_PER_CORE * cores():
        most = CPU_WORKERS_PER_CORE * cores()
        text = f"must be at most {most} on this CPU: {CPU_WORKERS_PER_CORE} for each of its {cores()} cores"
        yield Problem(key, text, wanted, f"{key}={cores()}")


def _fabric(config: Config) -> Iterator[Problem]:
    if _runs_here(config) and config.topology.workers > 1:
        yield from missing_hardware(settings(config.topology, device_kind(config.topology), os.environ))


def _strategy_workers(config: Config) -> Iterator[Problem]:
    most, workers = _check_declared(config).max_workers, config.topology.workers
    if most is None or workers <= most:
        return
    name = _strategy_name(config)
    count = "one worker" if most == 1 else f"at most {most} workers"
    text = f"strategy={name} trains on {count}, but the topology has {workers}; ddp uses all of them"
    yield Problem("strategy", text, name, "strategy=ddp")


def _strategy_name(config: Config) -> str:
    """Name of the strategy on the command line, or of its class if it is the user's."""
    name = config.strategy.target.rpartition(".")[2]
    return config.strategy.target.split(".")[-2] if declarations_before_import(config.strategy.target) else name


def _unfreezing(config: Config) -> Iterator[Problem]:
    if config.model is not None:
        yield from unfreezing(config, config.model, _check_declared(config), _strategy_name(config))


_BY_STRATEGY: list[Check] = [
    _global_batch, local_launcher, external_launcher, _devices, _strategy_workers, elastic_max_time, _unfreezing,
]  # fmt: skip
"""Checks that need the strategy's declarations: a user-provided class is imported after all other checks."""


def _contrastive(config: Config) -> Iterator[Problem]:
    yield from contrastive(config, _check_declared(config), _strategy_name(config))


def _precision(config: Config) -> Iterator[Problem]:
    precision = config.trainer.precision
    kind = device_kind(config.topology) if _runs_here(config) else config.topology.device.kind
    if precision.startswith("16-") and kind == "cpu":
        remedy = f"trainer.precision=bf16-{precision.removeprefix('16-')}"
        yield Problem("trainer.precision", "float16 needs a GPU, and these workers run on the CPU", precision, remedy)
    fused = config.optimizer is not None and bool(config.optimizer.arguments.get("fused"))
    if precision == "16-mixed" and fused and config.trainer.reads_gradients:
        reader = "log_grad_norm" if config.trainer.gradient_clip_val is None else "gradient_clip_val"
        text = f"a fused optimizer unscales 16-mixed's gradients in its own step, after trainer.{reader} has read them"
        yield Problem("optimizer.fused", text, True, "optimizer.fused=false")


def _partitions(config: Config) -> Iterator[Problem]:
    count, order = config.dataset.partitions, config.dataset.partition_order
    if order is None:
        return
    orders: Any = order if order and isinstance(order[0], list) else [order]
    if any(sorted(each) != list(range(count)) for each in orders):
        text = f"must name each of the {count} partitions (dataset.partitions) once, counted from 0"
        example = ",".join(map(str, range(count - 1, -1, -1))) if count <= 8 else "..."
        yield Problem("dataset.partition_order", text, order, f"dataset.partition_order=[{example}]")


def _shuffle(config: Config) -> Iterator[Problem]:
    dataset = config.dataset
    if dataset.shuffling == "global":
        return
    if dataset.cache != "none":
        text = "blocks are for what is read from a disk in every epoch, and dataset.cache keeps all images"
        yield Problem("dataset.shuffling", text, dataset.shuffling, "dataset.shuffling=global")
    if dataset.sampling != "instance_balanced":
        text = "an epoch of blocks reads each sample once, and dataset.sampling draws some several times"
        yield Problem("dataset.sampling", text, dataset.sampling, "dataset.shuffling=global")
    if dataset.partitions > 1 and dataset.partitioning != "contiguous":
        text = "must be contiguous with dataset.shuffling=blocks: only consecutive samples have blocks"
        yield Problem("dataset.partitioning", text, dataset.partitioning, "dataset.partitioning=contiguous")


def _cache(config: Config) -> Iterator[Problem]:
    dataset = config.dataset
    if dataset.cache == "device" and dataset.num_workers:
        text = "must be 0 with dataset.cache=device: what is on the device is not read by processes"
        yield Problem("dataset.num_workers", text, dataset.num_workers, "dataset.num_workers=0")


def _data_folder(config: Config) -> Iterator[Problem]:
    for name in DATA_FOLDERS:
        value = config.dataset.arguments.get(name)
        if isinstance(value, str) and "://" not in value and not exists(value):
            yield Problem(f"dataset.{name}", f"there is no such file or folder{existing_part(value)}", value,
                          f"dataset.{name}=PATH of the data")  # fmt: skip


def _learning_rate(config: Config) -> Iterator[Problem]:
    rate = config.optimizer.arguments.get("lr", 1.0) if config.optimizer else 1.0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        yield Problem("optimizer.lr", "must be a number greater than 0", rate, "optimizer.lr=0.02")


def _momentum(config: Config) -> Iterator[Problem]:
    momentum = config.optimizer.arguments.get("momentum", 0) if config.optimizer else 0
    if isinstance(momentum, int | float) and not 0 <= momentum < 1:
        text = "must be at least 0 and less than 1"
        yield Problem("optimizer.momentum", text, momentum, "optimizer.momentum=0.9")


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


def _task_loaders(config: Config) -> Iterator[Problem]:
    """Rules of dataset=null: the loaders are the task's, and nothing declares the number of classes."""
    if config.dataset.target != TASK_LOADERS:
        return
    cls = _class("task", config.task)
    name = config.task.target.rpartition(".")[2]
    if not (is_module_class(cls) and class_overrides(cls, "train_dataloader")):
        yield Problem("dataset", f"is null, and the task {name} has no train_dataloader", None, "dataset=digits")
    for key, node in (("task", config.task), ("model", config.model)):
        parameters = {} if node is None else parameters_of(_class(key, node))
        needed = [name for name in ("classes", "image_shape") if name in parameters]
        for argument in needed:
            if node is not None and parameters[argument].default is inspect.Parameter.empty:
                is_set = argument in node.arguments
                text = f"must be set: with dataset=null the loaders are {name}'s, which do not declare it"
                yield from () if is_set else [Problem(f"{key}.{argument}", text, remedy=f"{key}.{argument}=...")]


def _trainer_uses(config: Config) -> Iterator[Problem]:
    """Attributes of Lightning's Trainer that the task or the data module reads and Leyden's trainer does not have."""
    for key, node in (("task", config.task), ("dataset", config.dataset)):
        cls = _class(key, node)
        if not is_module_class(cls) and not is_data_module_class(cls):
            continue
        for use in uses(cls):
            if use.name not in TRAINER_ATTRIBUTES:
                close = nearest(use.name, sorted(TRAINER_ATTRIBUTES))
                text = f"{cls.__name__} reads self.trainer.{use.name} ({use.file}:{use.line}), which Leyden's trainer "
                text += "does not offer" + (f"; it has {close}" if close else "")
                remedy = f'getattr(self.trainer, "{use.name}", None), where the module can do without'
                yield Problem(f"{key}._target_", text, node.target, remedy)


_PACKAGES = {"WandbLogger": "wandb", "MLFlowLogger": "mlflow", "CometLogger": "comet_ml", "NeptuneLogger": "neptune",
             "TensorBoardLogger": "tensorboard", "Trackio": "trackio"}  # fmt: skip
"""Packages that Lightning's loggers and Trackio, and classes derived from them, need."""


def _loggers(config: Config) -> Iterator[Problem]:
    for name, node in config.logger.items():
        cls = _class(f"logger.{name}", node) if node is not None else None
        for logger, package in _PACKAGES.items():
            if is_a(cls, logger) and importlib.util.find_spec(package) is None:
                text = f"needs the package {package}, which is not installed"
                yield Problem(f"logger.{name}", text, logger, f"pip install {package}")


def _strategy_config(config: Config) -> Iterator[Problem]:
    for found in declarations_of(_class("strategy", config.strategy)).validate_config(config):
        yield found if isinstance(found, Problem) else Problem("strategy", found, config.strategy.target)


def _optimizer_rules(config: Config) -> Iterator[Problem]:
    optimizer = _class("optimizer", config.optimizer) if config.optimizer is not None else None
    yield from group_options(config, optimizer)
    if _check_declared(config).divides_parameters:
        yield from divided_parameters(config, optimizer)


def _schedule_rules(config: Config) -> Iterator[Problem]:
    if config.schedule is not None:
        yield from schedule_problems(config.schedule, _class("schedule", config.schedule))


def _callback_configs(config: Config) -> Iterator[Problem]:
    for name, node in config.callbacks.items():
        if node is None:
            continue
        key, cls = f"callbacks.{name}", _class(f"callbacks.{name}", node)
        if isinstance(cls, ValidatesConfig):
            yield from cls.validate_config(config, key, node)


def _lightning_callbacks(config: Config) -> Iterator[Problem]:
    """Callbacks of Lightning's that the loop cannot call."""
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


_OF_THIS_MACHINE: list[Check] = [
    _fabric, _data_folder, _devices, local_launcher, external_launcher, initial_weights, teacher_problems,
]  # fmt: skip
"""Checks of what a run needs where it starts."""
