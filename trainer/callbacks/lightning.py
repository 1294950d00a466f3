"""Lightning's callbacks, and users' own subclasses of its Callback, as observers of Leyden's loop.

They are called before the hooks of the task, in the config's order, with Lightning's arguments. What they get as
`trainer` is the small trainer of the task; there are no loops of Lightning's Trainer behind it.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger

from ..lightning_packages import is_lightning_module, lightning_base, overrides
from ..log import log
from ..state import RunState
from ..trainer_view import TrainerView
from .lightning_refusals import is_lightning_callback, refusal

_OF_THE_OBJECT = (
    "barebones", "datamodule", "predicting", "progress_bar_callback", "sanity_checking", "state", "testing", "training",
    "validating",
)  # fmt: skip
"""What an object of TrainerView has besides the properties of its class."""


class ObservedTrainer(TrainerView):
    """The trainer of a run that has Lightning callbacks: with what Lightning's own read of its Trainer's inside."""

    @property
    def callbacks(self) -> list[Any]:
        """Leyden's and Lightning's, in the order in which they are called."""
        return [c.callback if isinstance(c, Observer) else c for c in self._state.callbacks.values()]

    @property
    def loggers(self) -> list[Any]:
        """Those of the run; on other workers than the first, and where nothing is kept, one that drops what it gets."""
        return self._state.fabric.loggers if self._writes else [DummyLogger()]

    @property
    def logger(self) -> Any:
        return next(iter(self.loggers), None)

    @property
    def accelerator(self) -> Any:
        return self._state.fabric.accelerator

    @property
    def _writes(self) -> bool:
        return self._state.fabric.is_global_zero and not self._state.config.trainer.fast_dev_run

    @property
    def fit_loop(self) -> Any:
        """For LearningRateMonitor and DeviceStatsMonitor."""
        return SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=self._state.step))

    @property
    def _logger_connector(self) -> Any:
        """For the same: whether they are to log at the step that begins, or has just been made."""
        due = (self._state.step + 1) % self._state.config.trainer.log_every_n_steps == 0
        return SimpleNamespace(should_update_logs=due or self.should_stop)


def offered() -> set[str]:
    """What a user's callback may read of its trainer."""
    inside = {"fit_loop"}
    return {name for name in dir(ObservedTrainer) if not name.startswith("_")} - inside | set(_OF_THE_OBJECT)


class Observer:
    """One Lightning callback: what a checkpoint keeps of it."""

    def __init__(self, callback: Any):
        self.callback = callback

    def state_dict(self) -> dict[str, Any]:
        return self.callback.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.callback.load_state_dict(state)


class Observers:
    """The Lightning callbacks of a run, as `Hooks` calls them."""

    def __init__(self, state: RunState, callbacks: Sequence[Any]):
        self._state = state
        self._callbacks = callbacks

    def methods(self, hook: str) -> list[Callable[..., None]]:
        """The callbacks' methods of this name, those alone that do something, without their first two arguments."""
        found = [getattr(callback, hook, None) for callback in self._callbacks]
        own = [method for method in found if callable(method) and not _of_the_base(method)]
        return [self._bound(method) for method in own]

    def _bound(self, method: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            task = self._state.task
            method(task.trainer, task, *arguments)

        return call


def _of_the_base(method: Any) -> bool:
    """Whether a callback has left the hook as Lightning's Callback has it, where it does nothing."""
    base = lightning_base(type(getattr(method, "__self__", None)), "Callback")
    return base is not None and getattr(method, "__func__", None) is vars(base).get(method.__name__)


def observe(state: RunState) -> None:
    """Have the Lightning callbacks of the config, and those of the task's configure_callbacks, called by the hooks.

    Raises:
        ValueError: the loop cannot call one of them, or two would keep their states under one name.
    """
    given = [callback for callback in state.callbacks.values() if is_lightning_callback(type(callback))]
    callbacks = _with_those_of(state.task, given)
    for callback in callbacks:
        refused = refusal(type(callback))
        if refused is not None:
            raise ValueError(f"{refused.text}" + (f"; try: {refused.remedy}" if refused.remedy else ""))
    if not callbacks:
        return
    state.callbacks = {n: c for n, c in state.callbacks.items() if not is_lightning_callback(type(c))}
    view: Any = ObservedTrainer(state)
    for module in state.task.modules():
        if is_lightning_module(module):
            module.trainer = view
    if view.datamodule is not None:
        view.datamodule.trainer = view
    for callback in callbacks:
        if callback.state_key in state.callbacks:
            raise ValueError(f"two callbacks have the state_key {callback.state_key!r}; each needs one of its own")
        state.callbacks[callback.state_key] = Observer(callback)
        callback.log, callback.log_dict = state.task.log, state.task.log_dict
    state.hooks.observers = Observers(state, callbacks)


def _with_those_of(task: LightningModule, given: list[Any]) -> list[Any]:
    """As in Lightning, the task's own take the place of those of the config that they are derived from."""
    if not overrides(task, "configure_callbacks"):
        return given
    returned = task.configure_callbacks()
    own = list(returned) if isinstance(returned, (list, tuple)) else [returned] if returned else []
    for callback in own:
        if not is_lightning_callback(type(callback)):
            name = type(task).__name__
            raise ValueError(f"{name}.configure_callbacks gives {type(callback).__name__}, not a Lightning callback")
    replaced = [c for c in given if any(isinstance(other, type(c)) for other in own)]
    for callback in replaced:
        log.info("%s.configure_callbacks replaces the config's %s", type(task).__name__, type(callback).__name__)
    return [c for c in given if c not in replaced] + own
