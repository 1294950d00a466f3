"""What a LightningModule written for Lightning's Trainer finds here, and what is refused by name.

Under plain Fabric such a module is half blind: `self.log` writes one row a batch, `self.trainer` raises, counters stay
at 0. `attach` gives it what DESIGN section 3 promises; `refused` lists what Leyden's loop does not offer.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric

from .lightning_packages import is_lightning_module, overrides
from .log import log as run_log
from .metric_log import named_values
from .trainer_view import TrainerView

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
"""Hooks of Lightning 1 that Lightning 2 refuses by name, and the hook in place of each."""
_NOT_OFFERED_TO_DATA = ("on_before_batch_transfer", "transfer_batch_to_device")
_DATA_IN_TASK = ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader")
_SCHEDULE_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "reduce_on_plateau", "name")


def refused(task: LightningModule) -> list[str]:
    """What the task asks for that the loop does not offer, by name."""
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


def refused_of_data(module: LightningDataModule) -> list[str]:
    """What a data module asks for that the loop does not offer, by name."""
    return [f"{type(module).__name__} overrides {hook}" for hook in _NOT_OFFERED_TO_DATA if overrides(module, hook)]


def unused_of_task(task: LightningModule) -> list[str]:
    """What the task defines and `dataset` decides, as a LightningDataModule does under Lightning's Trainer."""
    return [hook for hook in _DATA_IN_TASK if overrides(task, hook)]


class Hooks:
    """Calls the hooks that a task or data module defines; those it leaves alone cost nothing."""

    def __init__(self, *modules: LightningModule | LightningDataModule):
        self._modules = modules
        self.observers: Any = None
        """Lightning callbacks (callbacks.lightning.Observers), called before the modules."""
        self._found: dict[str, list[tuple[Callable[..., Any], int]]] = {}

    def find(self, hook: str) -> list[Callable[..., Any]]:
        return [method for method, _ in self._taking(hook)]

    def observed(self, hook: str) -> list[Callable[..., Any]]:
        """The methods of Lightning callbacks alone."""
        return [] if self.observers is None else self.observers.methods(hook)

    def _taking(self, hook: str) -> list[tuple[Callable[..., Any], int]]:
        """The hook's methods, and how many arguments each takes."""
        found = self._found.get(hook)
        if found is None:
            methods = [getattr(m, hook) for m in self._modules if hasattr(m, hook) and overrides(m, hook)]
            methods = [*self.observed(hook), *methods]
            found = self._found[hook] = [(method, positional(method)) for method in methods]
        return found

    def __call__(self, hook: str, *arguments: Any) -> None:
        for method, taken in self._taking(hook):
            answer = method(*arguments[:taken])
            if answer is not None and hook == "on_train_batch_start" and answer == -1:
                raise NotImplementedError("on_train_batch_start returned -1: an epoch's rest cannot be skipped")


def positional(method: Callable[..., Any]) -> int:
    """How many positional arguments a method takes."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return sys.maxsize
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


@dataclass
class ScheduleEntry:
    """A learning-rate scheduler and when it moves."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    """Whether a monitored metric that was not logged ends the run; else the scheduler waits."""
    name: str | None = None
    """What LearningRateMonitor calls it."""
    reduce_on_plateau: bool = False
    """Whether the scheduler's step takes the monitored value."""
    counts_batches: bool = False
    """Whether frequency counts the batches of an epoch, as in Lightning, and not the optimizer steps of the run."""

    def due(self, step: int, batch: int) -> bool:
        """Whether a schedule by the step moves after optimizer step number `step`, at batch number `batch` of the
        epoch, both counted from 1."""
        return self.interval == "step" and (batch if self.counts_batches else step) % self.frequency == 0


def read_configure_optimizers(returned: Any, task_name: str) -> tuple[Optimizer, list[ScheduleEntry]]:
    """Every form that LightningModule.configure_optimizers may return, for one optimizer.

    Raises:
        ValueError: no optimizer, several, or a form that is not known.
    """
    optimizers, schedules = _parts(returned)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        raise ValueError(f"{task_name}.configure_optimizers must give exactly one optimizer, not {len(optimizers)}")
    closure = inspect.signature(type(optimizers[0]).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizers[0]).__name__
        raise ValueError(f"{task_name}.configure_optimizers gives {kind}, whose step needs a closure: not offered")
    return optimizers[0], [_schedule_entry(schedule) for schedule in schedules]


def _parts(returned: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(returned, dict):
        schedule = returned.get("lr_scheduler")
        if isinstance(schedule, dict) and "monitor" in returned:
            schedule = {"monitor": returned["monitor"], **schedule}
        elif schedule is not None and "monitor" in returned:
            schedule = {"scheduler": schedule, "monitor": returned["monitor"]}
        return [returned["optimizer"]], [] if schedule is None else [schedule]
    if isinstance(returned, (tuple, list)):
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            return list(returned[0]), list(returned[1])
        if returned and all(isinstance(item, dict) for item in returned):
            parts = [_parts(item) for item in returned]
            return [o for opts, _ in parts for o in opts], [s for _, scheds in parts for s in scheds]
        return list(returned), []
    return ([] if returned is None else [returned]), []


def _schedule_entry(given: Any) -> ScheduleEntry:
    if not isinstance(given, dict):
        given = {"scheduler": given}
    unknown = sorted(set(given) - set(_SCHEDULE_KEYS))
    if unknown:
        run_log.warning("configure_optimizers: lr_scheduler has no key %s; it is ignored", ", ".join(unknown))
    known = {key: given[key] for key in _SCHEDULE_KEYS if key in given}
    entry = ScheduleEntry(**known, counts_batches=True)
    watches = entry.reduce_on_plateau = given.get("reduce_on_plateau", isinstance(entry.scheduler, ReduceLROnPlateau))
    if watches and entry.monitor is None:
        raise ValueError("ReduceLROnPlateau needs a metric to watch: schedule.monitor, or 'monitor' beside it")
    if not watches:
        entry.monitor = None  # other schedulers would take the metric for an epoch number
    if entry.interval not in ("step", "epoch"):
        raise ValueError(f"lr_scheduler interval {entry.interval!r} is not one of step, epoch")
    return entry


def attach(task: LightningModule, state: "RunState") -> None:
    """Gives the task, and the LightningModules in it, their `trainer`, and a `log` that the loop reads."""
    view: Any = TrainerView(state)
    if view.datamodule is not None:
        view.datamodule.trainer = view
    state.log.owner = task

    def log(
        name: str, value: Any, prog_bar: bool = False, logger: bool | None = None, *more: Any, **options: Any
    ) -> None:
        if logger is False:
            state.unlogged.update((name, f"{name}_step", f"{name}_epoch"))
        if prog_bar:
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
            # Set on the object: nn.Module would take a function for a plain attribute, which is what is wanted.
            object.__setattr__(module, "log", log)
            object.__setattr__(module, "log_dict", log_dict)
            object.__setattr__(module, "optimizers", optimizers)


def settle_precision(task: LightningModule, device: torch.device) -> None:
    """Tells every LightningModule its device and the dtype its parameters have got; metrics keep adding up in float32.

    To be called when precision and strategy have converted and wrapped the task.
    """
    for module in task.modules():
        if isinstance(module, Metric):
            module.set_dtype(torch.float32)
        elif is_lightning_module(module):
            module._device = device  # Fabric does it for modules of the package lightning alone
            floating = next((p for p in module.parameters() if p.is_floating_point()), None)
            if floating is not None:
                module._dtype = floating.dtype


def batch_transfer(state: "RunState") -> Callable[[Any], Any]:
    """A batch's way to where it is computed: the device, the data's on_after_batch_transfer, then the task's own.

    The hooks see it in the run's precision, as under Lightning's Trainer; the step converts what they make of it.
    """
    precision = state.fabric.strategy.precision
    convert = None if isinstance(precision, MixedPrecision) else precision.convert_input
    prepare, device = state.data.on_after_batch_transfer, state.fabric.device
    change = state.task.on_after_batch_transfer if overrides(state.task, "on_after_batch_transfer") else None

    def transfer(batch: Any) -> Any:
        if convert is not None:
            batch = convert(batch)
        if device.type != "cpu":
            batch = move_data_to_device(batch, device)
        batch = prepare(batch, 0)
        return batch if change is None else change(batch, 0)

    return transfer
