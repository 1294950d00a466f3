"""From a frozen config to the objects of a training, in the one order that precision and strategies need."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import Logger
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from .callbacks.lightning import observe
from .config import Config
from .data import ImageData, Splits
from .dropout import keyed
from .lightning_module import (
    Hooks,
    ScheduleEntry,
    attach,
    overrides,
    read_configure_optimizers,
    refused,
    settle_precision,
    unused_of_task,
)
from .loader_data import LoaderData, is_data_module
from .log import log
from .pulse import PREPARATION, START, pulse
from .random_state import seed_everything
from .signals import StopRequest
from .state import RunState
from .strategies.contract import Contract
from .sync_batchnorm import synchronized
from .targets import build, locate, takes
from .task import Step
from .time_limit import TimeLimit
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
    pulse.at(START, 0)
    fabric = make_fabric(config, make_loggers(config, run_dir)) if shared is None else shared.fabric(config)
    make_deterministic(config)
    # The same weights on every worker; from the training on, each draws for itself.
    seed_everything(config.seed)
    contract = Contract(fabric)
    pulse.at(PREPARATION, 0)
    data = make_data(config, fabric, contract, shared.splits if shared is not None else None)
    pulse.at(START, 0)
    task = make_task(config, data, contract)
    state = RunState(config, run_dir, fabric, contract, task, data, stop_request)
    if state.steps_per_epoch == 0:
        limit = config.trainer.train_limit
        key = "overfit_batches" if config.trainer.overfit_batches else "limit_train_batches"
        raise ValueError(f"trainer.{key}={limit} leaves nothing of the {data.steps_per_epoch} steps an epoch")
    ValidationSchedule.of(config.trainer, state.steps_per_epoch)
    state.time_limit = TimeLimit(config.trainer.max_time)
    state.hooks = Hooks(*[m for m in (task, getattr(data, "module", None)) if m is not None])
    state.callbacks = {name: build(node) for name, node in config.callbacks.items() if node is not None}
    attach(task, state)
    observe(state)
    for setup in state.hooks.observed("setup"):
        setup("fit")
    task.setup("fit")
    task.configure_model()
    if config.trainer.sync_batchnorm and fabric.world_size > 1:
        state.task = task = synchronized(task, fabric.device)
    keyed(task, state.sample_keys, config.trainer.compile)
    if config.trainer.channels_last:
        task.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    pulse.at(START, 0)
    state.module = fabric.setup_module(Step(task))
    pulse.at(START, 0)
    settle_precision(task)
    optimizer, state.schedules = make_optimizer(config, task, state)
    state.optimizer = fabric.setup_optimizers(optimizer)
    contract.attach(state)
    seed_everything(config.seed, fabric.global_rank)
    return state


def make_loggers(config: Config, run_dir: Path) -> list[Logger]:
    """Those of the config; none where nothing is to be kept."""
    given = {"root_dir": str(run_dir), "save_dir": str(run_dir)}
    quiet = config.trainer.fast_dev_run
    return [] if quiet else [build(node, **given) for node in config.logger.values() if node is not None]


def make_fabric(config: Config, loggers: Sequence[Logger]) -> Fabric:
    """One Fabric, told everything, so that it guesses nothing (with srun on the PATH it would guess Slurm)."""
    alone = config.processes == 1 or config.elastic  # elastic workers know each other through servers alone
    in_group = "TORCHELASTIC_RUN_ID" in os.environ and not alone
    environment: ClusterEnvironment = TorchElasticEnvironment() if in_group else LightningEnvironment()
    fabric = Fabric(
        accelerator=device_kind(config),
        devices=own_device(config) if alone else config.topology.devices_per_node,
        num_nodes=1 if alone else config.topology.nodes,
        strategy=build(
            config.strategy,
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


def own_device(config: Config) -> int | list[int]:
    """Which of its node's devices a worker that is in no group computes on, as Fabric takes it."""
    if device_kind(config) == "cpu":
        return 1
    worker = os.environ.get("LOCAL_RANK") or os.environ.get("LEYDEN_WORKER") or 0
    return [int(worker) % torch.cuda.device_count()]


def device_kind(config: Config) -> str:
    kind = config.topology.device.kind
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("topology.device.kind=cuda, and this machine has no usable GPU: topology.device.kind=cpu")
    return kind if kind != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def make_deterministic(config: Config) -> None:
    torch.use_deterministic_algorithms(config.trainer.deterministic)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False


def make_data(config: Config, fabric: Fabric, contract: Contract, splits: Splits | None = None) -> Any:
    loaders = is_data_module(config.dataset.target)
    if loaders:
        data = LoaderData(config, fabric, contract.parts(), contract.stand_in())
    else:
        data = ImageData(
            config, contract.batch_share(), contract.parts(), contract.stand_in(), contract.evaluation_share(), splits
        )
    if data.synthetic and splits is None and fabric.is_global_zero:
        log.warning("dataset: SYNTHETIC images and labels. There is nothing to learn; look at speed alone.")
    return data


def make_task(config: Config, data: Any, contract: Contract) -> LightningModule:
    """The task, around the model where the config has one."""
    known = {name: getattr(data, name) for name in ("classes", "image_shape") if getattr(data, name) is not None}
    if config.model is None:
        task = build(config.task, **known)
        log.info("task %s brings its own network (model=null)", config.task.target)
    else:
        with contract.building():
            model: nn.Module = build(config.model, **known, seed=config.seed)
        if config.trainer.compile:
            model.compile()
        task = build(config.task, model=model, **known)
    if not isinstance(task, LightningModule):
        raise ValueError(f"task: {config.task.target} is not a LightningModule")
    missing = refused(task)
    if missing:
        raise ValueError("Leyden's loop does not offer what the task asks for: " + "; ".join(missing))
    for name in unused_of_task(task):
        log.info("%s.%s is not used: the data is what dataset says", type(task).__name__, name)
    return task


def make_optimizer(config: Config, task: LightningModule, state: RunState) -> tuple[Optimizer, list[ScheduleEntry]]:
    """The task's own optimizer where it has one, else what `optimizer` and `schedule` say."""
    if overrides(task, "configure_optimizers"):
        name = type(task).__name__
        log.info("%s.configure_optimizers decides: optimizer and schedule of the config are not used", name)
        return read_configure_optimizers(task.configure_optimizers(), name)
    if config.optimizer is None:
        raise ValueError(f"optimizer is null, and {type(task).__name__} has no configure_optimizers: optimizer=sgd")
    settings = config.optimizer.arguments
    groups = parameter_groups(task, settings, config.optimizer.decay_bias_and_norm)
    optimizer: Optimizer = locate(config.optimizer.target)(groups, **settings)
    if config.schedule is None:
        return optimizer, []
    return optimizer, [make_schedule(config, optimizer, state.total_steps)]


def parameter_groups(task: nn.Module, settings: dict[str, Any], decay_all: bool) -> list[Any]:
    """All parameters, or those of one dimension (biases and norms) apart, without weight decay."""
    parameters = [p for p in task.parameters() if p.requires_grad]
    if decay_all or "weight_decay" not in settings:
        return parameters
    kinds = [[p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]]
    decays = [settings["weight_decay"], 0.0]
    return [{"params": group, "weight_decay": decay} for group, decay in zip(kinds, decays, strict=True) if group]


def make_schedule(config: Config, optimizer: Optimizer, total_steps: int) -> ScheduleEntry:
    settings = config.schedule
    assert settings is not None
    arguments = settings.arguments
    constructor = locate(settings.target)
    if takes(constructor, "total_steps") and arguments.get("total_steps") is None:
        arguments["total_steps"] = max(1, total_steps)
    with warnings.catch_warnings():
        # Some schedulers call step() before the optimizer's first, and warn of themselves.
        warnings.simplefilter("ignore")
        scheduler = constructor(optimizer, **arguments)
    return ScheduleEntry(scheduler, settings.interval, settings.frequency, settings.monitor)
