"""model.freeze and model.unfreeze_at: parameters that are not trained, for good or until an epoch."""

from collections.abc import Sequence

from torch import nn

from ...base.errors import join_names
from ...base.log import log
from ...config.schema import Model
from ..sync_batchnorm import NormBase
from .name_patterns import matching


class Freezing:
    """The frozen part of a network.

    A frozen parameter has requires_grad=False: no gradient is computed, sent or applied. A BatchNorm whose parameters
    are all frozen stays in evaluation mode, so that its running statistics are those it was loaded with. Dropout in a
    frozen part still drops.

    Args:
        task: before the strategy wraps it.
        settings: of the config; None: the task has its own network, and nothing is frozen.

    Raises:
        ValueError: a pattern matches no parameter, or all are frozen for good.
    """

    def __init__(self, task: nn.Module, settings: Model | None):
        patterns = [] if settings is None else settings.freeze
        self._until = None if settings is None else settings.unfreeze_at
        names = [name for name, _ in task.named_parameters()]
        matches = {name for pattern in patterns for name in matching(names, pattern, "model.freeze")}
        trained = {name for name, parameter in task.named_parameters() if parameter.requires_grad}
        # what the network itself has frozen stays so
        self._names = matches & trained
        if patterns and self._until is None and not trained - matches:
            raise ValueError(f"model.freeze={join_names(patterns)} leaves no parameter to train: fewer patterns")
        self._norms = _frozen_norms(task, self._names)
        self._task = task
        self._frozen: bool | None = None
        if self._until is None:
            self._set(True)

    def begin_epoch(self, epoch: int) -> None:
        """Freeze or unfreeze as this epoch wants it."""
        self._set(self._until is None or epoch < self._until)

    def _set(self, frozen: bool) -> None:
        if self._frozen != frozen and self._names:
            for name, parameter in self._task.named_parameters():
                if name in self._names:
                    parameter.requires_grad_(not frozen)
            log.info(
                "%d parameters are %s (model.freeze)", len(self._names), "frozen" if frozen else "trained from now on"
            )
        self._frozen = frozen
        for norm in self._norms:
            norm.train(not frozen)


def _frozen_norms(task: nn.Module, names: set[str]) -> Sequence[nn.Module]:
    """BatchNorm layers all of whose parameters are among these."""
    found: list[nn.Module] = []
    for path, module in task.named_modules():
        own = {f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)}
        if isinstance(module, NormBase) and own and own <= names:
            found.append(module)
    return found
