"""Adapter for LightningModules: `trainer`, `log` and hooks as under Lightning's Trainer.

Under plain Fabric `self.log` writes one row a batch, `self.trainer` raises, and counters stay at 0. `attach` provides
them; `refused_features` lists the features that Leyden's loop does not offer.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule
from torch.optim import Optimizer
from torchmetrics import Metric

from ..config.lightning.base_classes import is_lightning_module, overrides
from .lightning_compat import input_conversion, set_device_and_dtype
from .metric_log import named_values
from .trainer_view.view import TrainerView

if TYPE_CHECKING:
    from .state import RunState


_NOT_OFFERED = (
    "backward",
    "configure_gradient_clipping",
    "configure_sharded_model",
    "on_before_batch_transfer",
    "on_test_model_eval",
    "on_test_model_train",
    "on_validation_model_eval",
    "on_validation_model_train",
    "on_validation_model_zero_grad",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)
_REMOVED = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
    "test_epoch_end": "on_test_epoch_end",
}
"""Hooks of Lightning 1 that Lightning 2 refuses, and the replacement of each."""
_NOT_OFFERED_TO_DATA = ("on_before_batch_transfer", "transfer_batch_to_device")
_DATA_IN_TASK = ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader")


def refused_features(task: LightningModule) -> list[str]:
    """Features that the task uses and the loop does not offer."""
    name = type(task).__name__
    missing = [f"{name} overrides {hook}" for hook in _NOT_OFFERED if overrides(task, hook)]
    for hook, instead in _REMOVED.items():
        if callable(getattr(task, hook, None)):
            missing.append(f"{name}.{hook} (Lightning 2 has removed it: keep outputs in an attribute, and {instead})")
    if not task.automatic_optimization:
        missing.append(f"{name} sets automatic_optimization = False (manual optimization)")
    if not overrides(task, "training_step"):
        missing.append(f"{name} has no training_step")
    if "dataloader_iter" in inspect.signature(task.training_step).parameters:
        missing.append(f"{name}.training_step takes dataloader_iter")
    return missing


def refused_features_of_data(module: LightningDataModule) -> list[str]:
    """Features that a data module uses and the loop does not offer."""
    return [f"{type(module).__name__} overrides {hook}" for hook in _NOT_OFFERED_TO_DATA if overrides(module, hook)]


def unused_hooks_of_task(task: LightningModule) -> list[str]:
    """Loader hooks of the task that `dataset` overrides, as a LightningDataModule does under Lightning's Trainer."""
    return [hook for hook in _DATA_IN_TASK if overrides(task, hook)]


def attach(task: LightningModule, state: "RunState") -> None:
    """Set `trainer`, `log`, `log_dict` and `optimizers` on the task and the LightningModules in it."""
    view: Any = TrainerView(state)
    if view.datamodule is not None:
        view.datamodule.trainer = view
    state.log.owner = task
    shown = set[str]()

    def log(
        name: str, value: Any, prog_bar: bool = False, logger: bool | None = None, *more: Any, **options: Any
    ) -> None:
        state.logged.add(name)
        if logger is False:
            state.unlogged.update((name, f"{name}_step", f"{name}_epoch"))
        if prog_bar and name not in shown:
            shown.add(name)
            state.shown.update((name, f"{name}_step", f"{name}_epoch"))
        state.log.log(name, value, prog_bar, logger, *more, **options)

    def log_dict(dictionary: Any, *arguments: Any, **options: Any) -> None:
        for name, value in named_values(dictionary):
            log(name, value, *arguments, **options)

    def optimizers(use_pl_optimizer: bool = True) -> Optimizer:
        return state.raw_optimizer

    for module in task.modules():
        if is_lightning_module(module):
            module.trainer = view
            # object.__setattr__: as a plain attribute of the instance, bypassing nn.Module.
            object.__setattr__(module, "log", log)
            object.__setattr__(module, "log_dict", log_dict)
            object.__setattr__(module, "optimizers", optimizers)


def set_module_precision(task: LightningModule, device: torch.device) -> None:
    """Set `device` and `dtype` of every LightningModule to those of its parameters; metrics stay in float32.

    Call after precision and strategy have converted and wrapped the task.
    """
    for module in task.modules():
        if isinstance(module, Metric):
            module.set_dtype(torch.float32)
        elif is_lightning_module(module):
            dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
            set_device_and_dtype(module, device, next(dtypes, None))


def batch_transfer(state: "RunState") -> Callable[[Any], Any]:
    """Transfer of a batch to the device, through on_after_batch_transfer of the data, then of the task.

    The hooks receive it in the run's precision, as under Lightning's Trainer; the step converts their result.
    """
    convert = input_conversion(state.fabric.strategy.precision)
    device, user_module = state.fabric.device, state.data.user_module
    prepare = state.data.on_after_batch_transfer
    if user_module is not None and not overrides(user_module, "on_after_batch_transfer"):
        prepare = None
    change = state.task.on_after_batch_transfer if overrides(state.task, "on_after_batch_transfer") else None

    def transfer(batch: Any) -> Any:
        if convert is not None:
            batch = convert(batch)
        if device.type != "cpu":
            batch = move_data_to_device(batch, device)
        if prepare is not None:
            batch = prepare(batch, 0)
        return batch if change is None else change(batch, 0)

    return transfer
