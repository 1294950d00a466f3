"""Lightning's callbacks, and user-provided subclasses of its Callback, as observers of Leyden's loop.

They are called before the hooks of the task, in the config's order, with Lightning's arguments. Their `trainer` is the
TrainerView of the task, without the loops of Lightning's Trainer.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from typing_extensions import override

from ..base.log import log
from ..config.lightning.base_classes import is_lightning_module, lightning_base, overrides
from ..config.lightning.callbacks import is_lightning_callback, refusal
from .callback_contract import CallbackContract
from .state import RunState
from .trainer_view.view import TrainerView


class ObservedTrainer(TrainerView):
    """The trainer for Lightning callbacks, with the internals of Lightning's Trainer that its own callbacks read."""

    @property
    def callbacks(self) -> list[Any]:
        """Callbacks of Leyden and Lightning in calling order."""
        return [c.callback if isinstance(c, Observer) else c for c in self._state.callbacks.values()]

    @property
    def loggers(self) -> list[Any]:
        """Loggers of the run; a dummy logger on other ranks than 0, and in runs that log nothing."""
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
        """Position in the epoch, for LearningRateMonitor and DeviceStatsMonitor."""
        return SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=self._state.step))

    @property
    def _logger_connector(self) -> Any:
        """Whether the same two callbacks log at the current step."""
        due = (self._state.step + 1) % self._state.config.trainer.log_every_n_steps == 0
        return SimpleNamespace(should_update_logs=due or self.should_stop)


class Observer(CallbackContract):
    """One Lightning callback, and its state in checkpoints."""

    def __init__(self, callback: Any):
        self.callback = callback

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.callback.state_dict()

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.callback.load_state_dict(state)


class Observers:
    """The Lightning callbacks of a run, for `Hooks`."""

    def __init__(self, state: RunState, callbacks: Sequence[Any]):
        self._state = state
        self._callbacks = callbacks

    def methods(self, hook: str) -> list[Callable[..., None]]:
        """The callbacks' own methods of this name, bound to their first two arguments."""
        found = [getattr(callback, hook, None) for callback in self._callbacks]
        own = [method for method in found if callable(method) and not _of_the_base(method)]
        return [self._bind_method(method) for method in own]

    def _bind_method(self, method: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            task = self._state.task
            method(task.trainer, task, *arguments)

        return call


def _of_the_base(method: Any) -> bool:
    """Whether a hook is inherited unchanged from Lightning's Callback, where it does nothing."""
    base = lightning_base(type(getattr(method, "__self__", None)), "Callback")
    return base is not None and getattr(method, "__func__", None) is vars(base).get(method.__name__)


def observe(state: RunState) -> None:
    """Register the Lightning callbacks of the config and of the task's configure_callbacks with the hooks.

    Raises:
        ValueError: the loop cannot call one of them, or two have the same state_key.
    """
    configured = [callback for callback in state.callbacks.values() if is_lightning_callback(type(callback))]
    callbacks = _with_those_of(state.task, configured)
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


def _with_those_of(task: LightningModule, configured: list[Any]) -> list[Any]:
    """Callbacks of the config and the task; as in Lightning, the task's replace those of their class or bases."""
    if not overrides(task, "configure_callbacks"):
        return configured
    returned = task.configure_callbacks()
    own = list(returned) if isinstance(returned, (list, tuple)) else [returned] if returned else []
    for callback in own:
        if not is_lightning_callback(type(callback)):
            name = type(task).__name__
            raise ValueError(f"{name}.configure_callbacks gives {type(callback).__name__}, not a Lightning callback")
    replaced = [c for c in configured if any(isinstance(other, type(c)) for other in own)]
    for callback in replaced:
        log.info("%s.configure_callbacks replaces the config's %s", type(task).__name__, type(callback).__name__)
    return [c for c in configured if c not in replaced] + own
