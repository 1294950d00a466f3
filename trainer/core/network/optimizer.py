"""The optimizer that a config describes, around the parameters of a task."""

from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from ...base.log import log
from ...config.faults import at_fault, check_built
from ...config.lightning.base_classes import overrides
from ...config.locate import locate
from ...config.schema import Config
from .fused_step import fused_arguments
from .parameter_groups import Options, group_options, parameter_groups


def optimizer_options(config: Config, task: LightningModule) -> Options:
    """Options of parameter groups, where the optimizer is the config's."""
    if config.optimizer is None or overrides(task, "configure_optimizers"):
        return {}
    return group_options(task, config.optimizer, config.batch_size, locate(config.optimizer.target))


def build_optimizer(config: Config, task: LightningModule, options: Options, kind: str | None = None) -> Optimizer:
    """The optimizer of `optimizer`, which is not null.

    Args:
        kind: as of `fused_arguments`.

    Raises:
        CannotStart: it cannot be built.
    """
    assert config.optimizer is not None
    settings = config.optimizer.scaled_arguments(config.batch_size)
    if kind is None and settings.get("lr") != config.optimizer.arguments.get("lr"):
        log.info("optimizer.lr is %g for batch_size=%d", settings["lr"], config.batch_size)
    groups = parameter_groups(task, options)
    fused = fused_arguments(config, task, kind)
    with at_fault("optimizer", config.optimizer):
        optimizer: Optimizer = locate(config.optimizer.target)(groups, **settings, **fused)
    return check_built("optimizer", config.optimizer, optimizer)
