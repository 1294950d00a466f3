"""The contract of tasks: what a LightningModule may declare beyond Lightning's own methods."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class TaskContract:
    """Declarations of a task with their defaults, inherited before LightningModule.

        class Mine(TaskContract, LightningModule):
            LOGGED = {"train/loss": 1, "val/loss": 1}

    They are read before anything starts. `LOGGED` and `try_network` count in the class that defines them alone: a
    derived class may log other metrics, and call its network in another way. `leyden` refuses a name that is nearly one
    of these.
    """

    multi_label: ClassVar[bool | None] = None
    """Whether an image has any number of classes; None: the task does not say."""

    LOGGED: ClassVar[Mapping[str, int]] = {}
    """Logged metrics, with the least number of classes for each; if it is not defined, the first validation shows them.
    """

    outer_networks: Sequence["Module"] = ()
    """Networks that it computes with and that are none of its modules, as a teacher's is."""

    @staticmethod
    def more_logged(arguments: Mapping[str, Any]) -> list[str]:
        """Metrics that are logged because of the task's arguments."""
        return []

    @staticmethod
    def try_network(model: Any, images: "Tensor", classes: int | None) -> str | None:
        """The error in a network's output for images without values, for the trial build; None if correct.

        Args:
            classes: of the data; None: unknown yet.
        """
        return None


def defines(task: object, name: Literal["LOGGED", "try_network"]) -> TypeGuard[type[TaskContract]]:
    """Whether what a config names is a class with the contract that defines a declaration itself."""
    return isinstance(task, type) and issubclass(task, TaskContract) and name in vars(task)


@runtime_checkable
class TakesTargets(Protocol):
    """A task, or its class, with or without the contract, that says which targets it takes."""

    multi_label: bool | None
    """Same as TaskContract's."""


def takes_multi_label(task: object) -> bool | None:
    """Whether a task, or its class, takes images with any number of classes; None: it does not say."""
    return task.multi_label if isinstance(task, TakesTargets) else None


def class_probabilities(task: object, scores: "Tensor") -> "Tensor":
    """Probabilities of scores (batch, classes): their softmax; their sigmoid if images have any number of classes."""
    return scores.sigmoid() if takes_multi_label(task) is True else scores.softmax(1)
