"""The contract of callbacks: what a run calls, with defaults that do nothing."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ..base.errors import Problem
from ..config.schema import Config, Target

if TYPE_CHECKING:
    from .checkpoints.sharded_checkpoint import TensorSlice
    from .state import RunState


class CallbackContract:
    """Hooks of a callback with their defaults.

        class Mine(CallbackContract):
            @override
            def on_step_end(self, state): ...

    With `@override` (typing_extensions) a type checker reports a misspelt hook, and `leyden` refuses a name that is
    nearly a hook's. A class that does not inherit this one, and has some of the hooks, is called as well. Hooks are
    called in the config's order; a hook that a class does not override costs nothing. Callbacks of Lightning are called
    as by Lightning (core.lightning_callbacks).
    """

    averages_weights: ClassVar[bool] = False
    """Whether a copy of the weights is kept and updated in every step, which the planner counts."""

    sets_learning_rates: ClassVar[bool] = False
    """Whether it sets the rates of all steps, so that there are no schedules."""

    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterable[Problem]:
        """Problems of a config, before anything starts.

        Args:
            key: of this callback.
            node: the config of this callback.
        """
        return ()

    def on_fit_start(self, state: "RunState") -> None:
        """Before the first step of this session, after a checkpoint is read."""

    def on_train_batch(self, state: "RunState", batch: Any) -> None:
        """Before the forward of each batch, or part of one."""

    def on_step_end(self, state: "RunState") -> None:
        """After each optimizer step."""

    def on_evaluation_batch(self, state: "RunState", split: str, index: int, output: Any, batch: Any) -> None:
        """After each batch that is evaluated.

        Args:
            split: val or test.
            index: of the batch.
            output: of the task's step.
        """

    def on_validation_end(self, state: "RunState") -> None:
        """After each validation."""

    def on_epoch_end(self, state: "RunState") -> None:
        """After each epoch and its validation."""

    def on_checkpoint(self, state: "RunState") -> None:
        """When a checkpoint is complete: at the next save, or at the end."""

    def on_exception(self, state: "RunState") -> None:
        """When an error ends the run."""

    def on_fit_end(self, state: "RunState") -> None:
        """After the last step of this session."""

    def evaluated(self, state: "RunState") -> AbstractContextManager[None]:
        """Context with the weights that are evaluated, tested and exported."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: None, booleans, numbers, texts, tensors, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint.

        Of a class with `pieces` it has two more parameters: the files of single workers (CheckpointShards or None), and
        the prefix of the names of the pieces in them.
        """

    def check_loaded(self, state: "RunState") -> None:
        """Refuse a state that was loaded and does not fit the run, by a ValueError."""

    def pieces(self) -> "Mapping[str, TensorSlice]":
        """This worker's slices of divided tensors, which it saves in a file of its own."""
        return {}


@runtime_checkable
class ValidatesConfig(Protocol):
    """A class, with or without the contract, that validates configs."""

    def validate_config(self, config: Config, key: str, node: Target) -> Iterable[Problem]: ...


def averages_weights(found: object) -> bool:
    """Whether what a config names is a callback that keeps a copy of the weights."""
    return isinstance(found, type) and issubclass(found, CallbackContract) and found.averages_weights
