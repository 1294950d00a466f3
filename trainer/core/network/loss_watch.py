"""Watch over a training_step that returns no loss."""

from dataclasses import dataclass

import torch
from torch import nn

from ...base.errors import Explained
from ...base.log import log


class NothingTrained(Explained, RuntimeError):
    """A training without any loss, after which every parameter is what it was."""


@dataclass
class LossWatch:
    """Whether there was a loss, in the epoch and in the session."""

    in_epoch: bool = False
    in_session: bool = False
    _warned: bool = False
    _before: list[tuple[float, float]] | None = None
    """Sums of the parameters at the session's first batch, where that had no loss."""

    def add(self) -> None:
        self.in_epoch = self.in_session = True

    def skip(self, task: nn.Module) -> None:
        """Take note of a batch without a loss."""
        if not self.in_session and self._before is None:
            self._before = _sums(task)

    def end_epoch(self, task: nn.Module) -> None:
        """Warn, once, of a whole epoch without a loss."""
        if not self.in_epoch and not self._warned and self._before is not None:
            log.warning("%s.training_step returned no loss in a whole epoch: nothing is trained by it (said once)",
                        type(task).__name__)  # fmt: skip
            self._warned = True
        self.in_epoch = False

    def refuse_untrained(self, task: nn.Module) -> None:
        """
        Raises:
            NothingTrained: no batch of the session had a loss, and no parameter has changed.
        """
        if not self.in_session and self._before is not None and self._before == _sums(task):
            raise NothingTrained(
                f"{type(task).__name__}.training_step returned no loss in the whole training, and no parameter has "
                "changed: return the loss, or a dict with 'loss'"
            )


@torch.no_grad()
def _sums(task: nn.Module) -> list[tuple[float, float]]:
    """Sum and norm of each parameter that has them."""
    floating = [p for p in task.parameters() if p.is_floating_point()]
    return [
        (float(p.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(p, dtype=torch.float64))) for p in floating
    ]
