"""Building of a training from a frozen config, in the one order that precision and strategies need."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import Logger
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from ..base.errors import CannotStart, Problem, spell_value
from ..base.heartbeat import PREPARATION, START, heartbeat
from ..base.log import log
from ..base.paths import shorten_path
from ..base.rng import seed_everything
from ..base.signals import StopRequest
from ..base.time_limit import TimeLimit
from ..config.faults import at_fault, build_checked, check_built
from ..config.lightning.base_classes import overrides
from ..config.locate import locate
from ..config.schema import TASK_LOADERS, Config
from ..config.targets import is_data_module, takes
from ..core.callback_contract import CallbackContract
from ..core.configure_optimizers import Ramped, ScheduleEntry, read_configure_optimizers
from ..core.data_contract import DataContract
from ..core.hooks import Hooks
from ..core.keyed.modules import with_keyed_layers
from ..core.lightning_adapter import attach, refused_features, set_module_precision, unused_hooks_of_task
from ..core.lightning_callbacks import observe
from ..core.loggers.calls import record_when_used, recorded_argument
from ..core.network.activation_checkpointing import checkpoint_activations
from ..core.network.freezing import Freezing
from ..core.network.optimizer import build_optimizer, optimizer_options
from ..core.network.parameter_groups import Options
from ..core.network.trained_network import network_of
from ..core.state import RunState
from ..core.strategy_contract import StrategyContract, contract_of
from ..core.sync_batchnorm import with_synchronized_norms
from ..core.task_contract import takes_multi_label
from ..data.datamodule import ImageData
from ..data.lightning_data import LoaderData
from ..data.splits import Splits
from ..data.task_loaders import TaskLoaderData
from ..hardware.topology import device_kind, shares_gpus
from .checkpoints.checkpoint import write_copies
from .network.batchnorm_statistics import batchnorm_statistics
from .network.compilation import compile_network
from .network.contrastive import share_batches
from .network.single_values import check_smallest_batch
from .shared_gpu import SharedCUDA, separate_hosts_for_nccl
from .step_module import Step
from .step_profiler import StepProfiler
from .validation_schedule import ValidationSchedule


@dataclass(frozen=True)
class Shared:
    """What the models of a pipeline that train in one process have in common."""

    splits: Splits
    loggers: Sequence[Logger]
    _fabrics: dict[str, Fabric] = field(default_factory=dict)

    def fabric(self, config: Config) -> Fabric:
        """One for each precision: making it costs more than a step. Loss scaling is a model's own."""
        precision = config.trainer.precision
        if precision not in self._fabrics or precision == "16-mixed":
            self._fabrics[precision] = make_fabric(config, self.loggers)
        return self._fabrics[precision]


def assemble(config: Config, run_dir: Path, stop_request: StopRequest, shared: Shared | None = None) -> RunState:
    """Everything but the weights' final values: those come from a checkpoint, init_from, or the seed.

    Args:
        shared: taken in place of what the config says.

    Raises:
        ValueError: the config's parts do not fit together in a way that only building them shows.
    """
    heartbeat.at(START, 0)
    fabric = make_fabric(config, make_loggers(config, run_dir)) if shared is None else shared.fabric(config)
    # The same weights on every worker; from the training on, each draws for itself.
    seed_everything(config.seed)
    contract = contract_of(fabric)
    if config.dataset.target == TASK_LOADERS:
        task = make_task(config, None, contract)
        data = TaskLoaderData(config, fabric, task, contract.parts(), contract.forward_is_collective)
    else:
        with heartbeat.phase(PREPARATION):
            data = make_data(config, fabric, contract, shared.splits if shared is not None else None)
        task = make_task(config, data, contract)
    state = RunState(config, run_dir, fabric, contract, task, data, stop_request)
    state.write_copies = partial(write_copies, state)
    state.batchnorm_statistics = partial(batchnorm_statistics, state)
    state.hooks = Hooks(*[m for m in (task, data.user_module) if m is not None])
    state.callbacks = {
        n: build_checked(f"callbacks.{n}", node) for n, node in config.callbacks.items() if node is not None
    }
    if config.trainer.profiler is not None:
        state.callbacks["profiler"] = StepProfiler(config.trainer.profiler)
    attach(task, state)
    observe(state)
    for setup in state.hooks.observing_methods("setup"):
        setup("fit")
    if isinstance(data, TaskLoaderData):
        with heartbeat.phase(PREPARATION):
            data.open()
    else:
        task.setup("fit")
    if state.steps_per_epoch == 0:
        limit = config.trainer.train_limit
        key = "overfit_batches" if config.trainer.overfit_batches else "limit_train_batches"
        raise ValueError(f"trainer.{key}={limit} leaves nothing of the {data.steps_per_epoch} steps an epoch")
    ValidationSchedule.of(config.trainer, state.steps_per_epoch)
    state.time_limit = TimeLimit(config.trainer.max_time)
    share_batches(state)
    task.configure_model()
    if config.trainer.sync_batchnorm and fabric.world_size > 1:
        with_synchronized_norms(task, state.padding)
    if config.trainer.exact_dropout:
        state.sample_keys.device = fabric.device
        with_keyed_layers(task, state.sample_keys)
    checkpoint_activations(network_of(task), config.trainer.activation_checkpointing)
    if config.trainer.channels_last:
        task.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    state.set_frozen = Freezing(task, config.model).begin_epoch
    if _trains_smallest(state):
        check_smallest_batch(data, network_of(task), config, fabric.world_size)
    options = optimizer_options(config, task)
    heartbeat.beat()
    state.module = fabric.setup_module(Step(task))
    heartbeat.beat()
    set_module_precision(task, fabric.device)
    optimizer, schedules = make_optimizer(config, task, state, options)
    sets_rates = any(
        isinstance(each, CallbackContract) and each.sets_learning_rates for each in state.callbacks.values()
    )
    state.schedules = [] if sets_rates else schedules
    refuse_unclippable(config, optimizer)
    state.optimizer = fabric.setup_optimizers(optimizer)
    contract.attach(state)
    seed_everything(config.seed, fabric.global_rank)
    return state


def _trains_smallest(state: RunState) -> bool:
    """Whether the training comes to the smallest batch: the last of an epoch, or of a partition."""
    several = isinstance(state.data, ImageData) and state.data.order.partitions > 1
    return several or state.total_steps >= state.steps_per_epoch == state.data.steps_per_epoch


def make_loggers(config: Config, run_dir: Path) -> list[Logger]:
    """Those of the config; none if nothing is to be kept."""
    if config.trainer.fast_dev_run:
        return []
    folder = str(run_dir)
    nodes = {name: node for name, node in config.logger.items() if node is not None}
    loggers: list[Logger] = []
    for name, node in nodes.items():
        known = recorded_argument(run_dir, name, locate(node.target))
        loggers.append(build_checked(f"logger.{name}", node, root_dir=folder, save_dir=folder, **known))
        record_when_used(run_dir, name, loggers[-1])
    return loggers


def make_fabric(config: Config, loggers: Sequence[Logger]) -> Fabric:
    """A Fabric that is given everything, so that it detects nothing (with srun on the PATH it would choose Slurm)."""
    alone = config.worker_processes == 1 or config.elastic  # elastic workers know each other through servers alone
    in_group = "TORCHELASTIC_RUN_ID" in os.environ and not alone
    environment: ClusterEnvironment = TorchElasticEnvironment() if in_group else _OneDevice()
    kind = usable_kind(config)
    if kind == "cuda" and in_group and shares_gpus():
        separate_hosts_for_nccl()
    fabric = Fabric(
        accelerator=SharedCUDA() if kind == "cuda" and in_group and shares_gpus() else kind,
        devices=own_device(config) if alone else config.topology.devices_per_node,
        num_nodes=1 if alone else config.topology.nodes,
        strategy=build_checked(
            "strategy",
            config.strategy,
            any_kind=False,
            topology=config.topology,
            parallel=config.model.parallel if config.model else None,
            batch_size=config.batch_size,
        ),
        precision=config.trainer.precision,
        plugins=[environment],
        loggers=list(loggers),
    )
    fabric.launch()
    return fabric


class _OneDevice(LightningEnvironment):
    """Environment of a process in no group: Fabric gets one device, whatever LOCAL_RANK says."""

    def local_rank(self) -> int:
        return 0


def own_device(config: Config) -> int | list[int]:
    """Which of its node's visible devices a worker that is in no group computes on, as Fabric takes it.

    A worker of a pipeline has a LOCAL_RANK; an elastic one is numbered over all nodes; the command's own process, or
    a simulation's, has the first device.

    Raises:
        ValueError: there are fewer devices.
    """
    if usable_kind(config) == "cpu":
        return 1
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if config.elastic:
        local = int(os.environ.get("LEYDEN_WORKER") or 0) % config.topology.devices_per_node
    there = torch.cuda.device_count()
    if there and shares_gpus():
        local %= there
    if local >= there:
        raise ValueError(f"CUDA sees {there} GPU{'s' * (there != 1)} here, and this is worker {local} of its node")
    return [local]


def usable_kind(config: Config) -> str:
    """What this worker computes on.

    Raises:
        ValueError: cuda, which torch cannot use here.
    """
    kind = device_kind(config.topology)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("topology.device.kind=cuda, and torch cannot use CUDA here: topology.device.kind=cpu")
    return kind


def make_data(config: Config, fabric: Fabric, contract: StrategyContract, splits: Splits | None = None) -> Any:
    loaders = is_data_module(config.dataset.target)
    if loaders:
        data = LoaderData(config, fabric, contract.parts(), contract.forward_is_collective)
    else:
        data = ImageData(
            config, contract.batch_share(), contract.parts(), contract.forward_is_collective,
            contract.evaluation_share(), splits, device=fabric.device,
        )  # fmt: skip
    if data.synthetic and splits is None and fabric.is_global_zero:
        log.warning("dataset: SYNTHETIC images and labels. There is nothing to learn; look at speed alone.")
    return data


def make_task(config: Config, data: DataContract | None, contract: StrategyContract) -> LightningModule:
    """The task, around the model if the config has one. `data` is None if the task brings its loaders."""
    known_data = DataContract() if data is None else data
    _refuse_one_class(config, known_data)
    values = {"classes": known_data.classes, "image_shape": known_data.image_shape}
    known = {name: value for name, value in values.items() if value is not None}
    if config.model is None:
        task = build_checked("task", config.task, **known)
        log.info("task %s brings its own network (model=null)", config.task.target)
        if config.trainer.compile:
            log.warning("trainer.compile compiles what model names: the task's own network is not compiled")
    else:
        with contract.build_context():
            model: nn.Module = build_checked("model", config.model, **known, seed=config.seed)
        compile_network(model, config.trainer.compile)
        task = build_checked("task", config.task, model=model, **known)
    _refuse_other_targets(task, known_data)
    missing = refused_features(task)
    if missing:
        raise ValueError("Leyden's loop does not offer what the task asks for: " + "; ".join(missing))
    for name in unused_hooks_of_task(task) if data is not None else ():
        text = "%s.%s is not used: the data is what dataset says; dataset=null takes the task's own loaders"
        log.info(text, type(task).__name__, name)
    return task


def _refuse_one_class(config: Config, data: DataContract) -> None:
    """
    Raises:
        CannotStart: the task predicts one class of several, and the data has one.
    """
    task, classes = locate(config.task.target), data.classes
    if classes is None or classes > 1 or takes_multi_label(task) is not False:
        return
    root = config.dataset.arguments.get("root")
    key, value = ("dataset", config.dataset.target) if root is None else ("dataset.root", shorten_path(Path(str(root))))
    names = f", {', '.join(map(str, data.class_names))}" if data.class_names else ""
    where, other = data.missed_classes
    text = f"there is {classes} class{names}, and {task.__name__} predicts one of at least two{where}"
    raise CannotStart(Problem(key, text, value, f"{key}={spell_value(shorten_path(Path(other)))}" if other else ""))


def _refuse_other_targets(task: LightningModule, data: DataContract) -> None:
    """
    Raises:
        CannotStart: the task takes other targets than the dataset has.
    """
    several, taken = data.multi_label, takes_multi_label(task)
    if several is None or taken is None or several == taken:
        return
    given = "any number of classes" if several else "one class (the dataset does not declare multi_label)"
    fitting = "multi_label" if several else "classification"
    text = f"{type(task).__name__} takes others: the images of the dataset have {given}"
    raise CannotStart(Problem("task", text, remedy=f"task={fitting}"))


def make_optimizer(
    config: Config, task: LightningModule, state: RunState, options: Options
) -> tuple[Optimizer, list[ScheduleEntry]]:
    """The task's own optimizer if it has one, else what `optimizer` and `schedule` say."""
    if overrides(task, "configure_optimizers"):
        name = type(task).__name__
        log.info("%s.configure_optimizers decides: optimizer and schedule of the config are not used", name)
        return read_configure_optimizers(task.configure_optimizers(), name)
    if config.optimizer is None:
        text = f"is null, and {type(task).__name__} has no configure_optimizers"
        raise CannotStart(Problem("optimizer", text, remedy="optimizer=sgd"))
    optimizer = build_optimizer(config, task, options)
    if config.schedule is None:
        return optimizer, []
    return optimizer, make_schedules(config, optimizer, state.total_steps, state.steps_per_epoch)


def refuse_unclippable(config: Config, optimizer: Optimizer) -> None:
    """
    Raises:
        ValueError: gradients are to be clipped, or their norm logged, that only the optimizer's fused step would
            unscale.
    """
    trainer = config.trainer
    unscales = getattr(optimizer, "_step_supports_amp_scaling", False)
    if trainer.precision == "16-mixed" and trainer.reads_gradients and unscales:
        clip = trainer.gradient_clip_val
        reader = "log_grad_norm=true" if clip is None else f"gradient_clip_val={clip}"
        raise ValueError(
            f"{type(optimizer).__name__}(fused=True) unscales the gradients of trainer.precision=16-mixed in its step, "
            f"after trainer.{reader} has read them: fused=False"
        )


def make_schedules(config: Config, optimizer: Optimizer, total_steps: int, steps_per_epoch: int) -> list[ScheduleEntry]:
    settings = config.schedule
    assert settings is not None
    arguments = settings.arguments
    constructor = locate(settings.target)
    for name, steps in (("total_steps", total_steps), ("steps_per_epoch", steps_per_epoch)):
        if takes(constructor, name) and arguments.get(name) is None:
            arguments[name] = max(1, steps)
    with warnings.catch_warnings():
        # Some schedulers call step() before the optimizer's first, and warn of themselves.
        warnings.simplefilter("ignore")
        with at_fault("schedule", settings):
            scheduler = constructor(optimizer, **arguments)
    check_built("schedule", settings, scheduler)
    ramp = scheduler.ramp if isinstance(scheduler, Ramped) else None
    by_step = [] if ramp is None else [ScheduleEntry(ramp, "step")]
    return [*by_step, ScheduleEntry(scheduler, settings.interval, settings.frequency, settings.monitor)]
