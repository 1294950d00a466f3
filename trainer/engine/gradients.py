"""Gradients of a whole step, before the optimizer's step: clipping, and the norm that is logged."""

from math import inf

from torch import Tensor

from ..core.metric_log import MetricEntry
from ..core.state import RunState
from ..core.torch_compat import is_traceable_wrapper_subclass

GRAD_NORM = "train/grad_norm"


class Gradients:
    """Clips gradients, and logs their norm before it at the steps whose values are logged.

    The norm is the Euclidean one over all trained parameters of the whole network, of the gradient that the optimizer
    would get without clipping. Asynchronous workers, which do not know what step they will be at when all synchronize,
    take the norm of each of their own gradients. A task that logs `train/grad_norm` itself is left to it.

    Args:
        asynchronous: workers make steps of their own.
    """

    def __init__(self, state: RunState, asynchronous: bool):
        self._state = state
        self._asynchronous = asynchronous
        trainer = state.config.trainer
        self._value, self._algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        self._clips_by_norm = self._value is not None and self._algorithm == "norm"
        self._logs = trainer.log_grad_norm or self._clips_by_norm
        self._every = trainer.log_every_n_steps
        self._last_step = min(state.step - state.step_in_epoch + state.steps_per_epoch, state.total_steps)
        self._entry: MetricEntry | None = None

    def clip(self, step: int) -> None:
        """
        Args:
            step: number of optimizer steps after this one.

        Raises:
            TypeError: the norm is to be logged, and the strategy's `clip` does not return it.
        """
        logged = self._logs and self._is_logged(step)
        norm = self._clip(inf, "norm") if logged and not self._clips_by_norm else None
        if self._value is not None:
            norm_before = self._clip(self._value, self._algorithm)
            norm = norm_before if self._clips_by_norm else norm
        if logged:
            self._log(norm)

    def forget_norm(self) -> None:
        """Forget the norm of the step before: it must not be logged for a step without one."""
        if self._entry is not None:
            self._entry.of_step.clear()

    def _is_logged(self, step: int) -> bool:
        return self._asynchronous or self._state.step // self._every < step // self._every or step >= self._last_step

    def _clip(self, value: float, algorithm: str) -> Tensor | None:
        return self._state.contract.clip(self._state.module, self._state.optimizer, value, algorithm)

    def _log(self, norm: Tensor | None) -> None:
        log = self._state.log
        if log.entries.get(GRAD_NORM) is not self._entry:
            return
        if norm is None:
            if not self._state.config.trainer.log_grad_norm:
                return
            strategy = type(self._state.contract).__name__
            raise TypeError(f"trainer.log_grad_norm=true: {strategy}.clip(..., 'norm') must return the norm")
        if is_traceable_wrapper_subclass(norm):  # DTensor
            norm = norm.full_tensor()  # pyright: ignore[reportAttributeAccessIssue]
        log.log(GRAD_NORM, norm, on_step=True, on_epoch=False)
        self._entry = log.entries[GRAD_NORM]
