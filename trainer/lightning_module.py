"""What a LightningModule written for Lightning's Trainer finds here, and what is refused by name.

Under plain Fabric such a module is half blind: `self.log` writes one row a batch, `self.trainer` raises, counters stay
at 0. `attach` gives it what DESIGN section 3 promises; `refused` lists what Leyden's loop does not offer.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

if TYPE_CHECKING:
    from .state import RunState

_NOT_OFFERED = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "configure_sharded_model",
    "on_before_batch_transfer",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


def refused(task: LightningModule) -> list[str]:
    """What the task asks for that the loop does not offer, by name."""
    name = type(task).__name__
    missing = [f"{name} overrides {hook}" for hook in _NOT_OFFERED if overrides(task, hook)]
    if not task.automatic_optimization:
        missing.append(f"{name} sets automatic_optimization = False (manual optimization)")
    if not overrides(task, "training_step"):
        missing.append(f"{name} has no training_step")
    if "dataloader_iter" in inspect.signature(task.training_step).parameters:
        missing.append(f"{name}.training_step takes dataloader_iter")
    return missing


def overrides(module: LightningModule | LightningDataModule, hook: str) -> bool:
    """Whether the class defines a hook of its own."""
    base = LightningModule if isinstance(module, LightningModule) else LightningDataModule
    return getattr(type(module), hook, None) is not getattr(base, hook, None)


class Hooks:
    """Calls the hooks that a task or data module defines; those it leaves alone cost nothing."""

    def __init__(self, *modules: LightningModule | LightningDataModule):
        self._modules = modules
        self._found: dict[str, list[Callable[..., Any]]] = {}

    def find(self, hook: str) -> list[Callable[..., Any]]:
        if hook not in self._found:
            self._found[hook] = [getattr(m, hook) for m in self._modules if hasattr(m, hook) and overrides(m, hook)]
        return self._found[hook]

    def __call__(self, hook: str, *arguments: Any) -> None:
        for method in self.find(hook):
            method(*arguments[: _positional(method)])


def _positional(method: Callable[..., Any]) -> int:
    return len(inspect.signature(method).parameters)


@dataclass
class ScheduleEntry:
    """A learning-rate scheduler and when it moves."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None


def read_configure_optimizers(returned: Any, task_name: str) -> tuple[Optimizer, list[ScheduleEntry]]:
    """Every form that LightningModule.configure_optimizers may return, for one optimizer.

    Raises:
        ValueError: no optimizer, several, or a form that is not known.
    """
    optimizers, schedules = _parts(returned)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        raise ValueError(f"{task_name}.configure_optimizers must give exactly one optimizer, not {len(optimizers)}")
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
    known = {key: given[key] for key in ("scheduler", "interval", "frequency", "monitor") if key in given}
    entry = ScheduleEntry(**known)
    if isinstance(entry.scheduler, ReduceLROnPlateau) and entry.monitor is None:
        raise ValueError("ReduceLROnPlateau needs a metric to watch: schedule.monitor, or 'monitor' beside the scheduler")
    if entry.interval not in ("step", "epoch"):
        raise ValueError(f"lr_scheduler interval {entry.interval!r} is not one of step, epoch")
    return entry


class TrainerView:
    """What a task may ask of `self.trainer`. Anything else raises AttributeError with the list."""

    def __init__(self, state: "RunState"):
        self._state = state
        self.training = self.validating = self.testing = self.sanity_checking = False
        self.barebones = False
        self.progress_bar_callback = None
        self.datamodule = state.data

    def __getattr__(self, name: str) -> Any:
        offered = ", ".join(sorted(n for n in vars(type(self)) if not n.startswith("_")))
        raise AttributeError(f"Leyden's trainer has no {name!r}; it offers {offered}, datamodule, training, validating")

    @property
    def current_epoch(self) -> int:
        return self._state.epoch

    @property
    def global_step(self) -> int:
        return self._state.step

    @property
    def max_epochs(self) -> int:
        return self._state.config.trainer.max_epochs

    @property
    def max_steps(self) -> int:
        return self._state.config.trainer.max_steps

    @property
    def estimated_stepping_batches(self) -> int:
        return self._state.total_steps

    @property
    def num_training_batches(self) -> int:
        return self._state.steps_per_epoch * self.accumulate_grad_batches

    @property
    def accumulate_grad_batches(self) -> int:
        return self._state.config.trainer.accumulate_grad_batches

    @property
    def world_size(self) -> int:
        return self._state.fabric.world_size

    @property
    def num_devices(self) -> int:
        return self._state.config.topology.devices_per_node

    @property
    def num_nodes(self) -> int:
        return self._state.config.topology.nodes

    @property
    def global_rank(self) -> int:
        return self._state.fabric.global_rank

    @property
    def local_rank(self) -> int:
        return self._state.fabric.local_rank

    @property
    def is_global_zero(self) -> bool:
        return self._state.fabric.is_global_zero

    @property
    def strategy(self) -> Any:
        return self._state.fabric.strategy

    @property
    def precision(self) -> str:
        return self._state.config.trainer.precision

    @property
    def optimizers(self) -> list[Any]:
        return [self._state.optimizer]

    @property
    def lr_scheduler_configs(self) -> list[ScheduleEntry]:
        return self._state.schedules

    @property
    def callback_metrics(self) -> dict[str, float]:
        return self._state.metrics

    @property
    def logged_metrics(self) -> dict[str, float]:
        return self._state.metrics

    @property
    def logger(self) -> Any:
        return self._state.fabric.loggers[0] if self._state.fabric.loggers else None

    @property
    def loggers(self) -> list[Any]:
        return self._state.fabric.loggers

    @property
    def default_root_dir(self) -> str:
        return str(self._state.run_dir)

    @property
    def should_stop(self) -> bool:
        return self._state.stop_reason is not None

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self._state.stop_reason = f"{type(self._state.task).__name__} asked to stop" if stop else None


def attach(task: LightningModule, state: "RunState") -> None:
    """Gives the task its `trainer`, and a `log` that the loop reads."""
    task.trainer = TrainerView(state)  # pyright: ignore[reportAttributeAccessIssue]  # quacks as far as promised

    def log(name: str, value: Any, *arguments: Any, **options: Any) -> None:
        state.log.log(name, value, *arguments, **options)

    def log_dict(dictionary: Any, *arguments: Any, **options: Any) -> None:
        state.log.log_dict(dictionary, *arguments, **options)

    # Set on the object: nn.Module would take a function for a plain attribute, which is what is wanted.
    object.__setattr__(task, "log", log)
    object.__setattr__(task, "log_dict", log_dict)
