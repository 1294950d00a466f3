"""The module that a strategy wraps, and the call of one of the task's steps through it."""

from collections.abc import Callable
from operator import methodcaller
from typing import Any

from lightning.fabric.plugins import Precision
from lightning.fabric.strategies.strategy import Strategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from ..core.lightning_compat import forward_module, input_conversion
from ..core.state import RunState


class Step(nn.Module):
    """The module that a strategy wraps: its forward runs one of the task's steps.

    Calling `task.training_step` on Fabric's wrapper instead bypasses precision and strategy if the strategy does
    not wrap the module.
    """

    def __init__(self, task: LightningModule):
        super().__init__()
        self.task = task

    def forward(self, step: str, *arguments: Any) -> Any:
        return getattr(self.task, step)(*arguments)


def run_step(state: RunState, step: str, *arguments: Any) -> Any:
    """One of the task's steps, through the strategy's wrapper and in the run's precision."""
    return step_runner(state)(step, *arguments)


def step_runner(state: RunState) -> Callable[..., Any]:
    """What `run_step` calls with a step's name and arguments.

    What Fabric's own wrapper adds to this costs 20 microseconds a step and rounds a float64 loss to float32.
    """
    module, precision = forward_module(state.module), state.fabric.strategy.precision
    if type(precision) is Precision:  # that of float32 converts nothing and has no context
        return module
    convert = input_conversion(precision)

    def run(step: str, *arguments: Any) -> Any:
        given = arguments if convert is None else convert(arguments)
        with precision.forward_context():
            return module(step, *given)

    return run


def backward_runner(strategy: Strategy) -> Callable[[Tensor], object]:
    """What `Fabric.backward` calls with a loss.

    Its wrapper adds a mark that outputs of Fabric's own wrapper of the module look at, which `step_runner` leaves out.
    """
    if type(strategy).backward is Strategy.backward and type(strategy.precision) is Precision:
        return methodcaller("backward")
    return lambda loss: strategy.backward(loss, None)


def steps_unwrapped(strategy: Strategy) -> bool:
    """Whether the step of the wrapper of `Fabric.setup_optimizers` is that of the optimizer inside."""
    return type(strategy).optimizer_step is Strategy.optimizer_step and type(strategy.precision) is Precision


class untouched_metrics:
    """Context after which a task's Metric objects are as before: a dummy batch must not count."""

    def __init__(self, task: nn.Module):
        self._metrics = [m for m in task.modules() if isinstance(m, Metric)]

    def __enter__(self) -> None:
        self._kept = [(m, m._copy_state_dict(), m._update_count) for m in self._metrics]

    def __exit__(self, *error: Any) -> None:
        for metric, state, updates in self._kept:
            for name, value in state.items():
                setattr(metric, name, value)
            metric._update_count = updates
