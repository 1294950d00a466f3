"""Early stopping."""

from typing import Any, Literal

import torch
from typing_extensions import override

from ...base.errors import NotLogged
from ...core.callback_contract import CallbackContract
from ...core.state import RunState


class EarlyStopping(CallbackContract):
    """Stops when `monitor` has not improved by `min_delta` for `patience` validations in a row.

    Raises:
        ValueError: patience below 1, an unknown mode.
        NotLogged: at a validation, if the task does not log the metric.
    """

    RESUMABLE = ("patience", "min_delta")

    def __init__(self, monitor: str, mode: Literal["max", "min"] = "min", patience: int = 3, min_delta: float = 0.0):
        if patience < 1 or mode not in ("max", "min"):
            raise ValueError(f"callbacks.early_stopping: patience={patience} must be over 0, mode={mode!r} max or min")
        self.monitor = monitor
        self.sign = 1.0 if mode == "max" else -1.0
        self.patience = patience
        self.min_delta = min_delta
        self.best: float | None = None
        self.without_improvement = 0

    # Attributes of Lightning's EarlyStopping that modules read from `self.trainer.early_stopping_callback`.

    @property
    def wait_count(self) -> int:
        return self.without_improvement

    @property
    def best_score(self) -> torch.Tensor:
        """Infinitely bad before the first validation, as in Lightning."""
        return torch.tensor(self.sign * (float("-inf") if self.best is None else self.best))

    @override
    def on_validation_end(self, state: RunState) -> None:
        if self.monitor not in state.metrics:
            raise NotLogged("callbacks.early_stopping.monitor", self.monitor, state.metrics)
        value = self.sign * state.metrics[self.monitor]
        if self.best is None or value > self.best + self.min_delta:
            self.best, self.without_improvement = value, 0
            return
        self.without_improvement += 1
        if self.without_improvement >= self.patience:
            state.stop_reason = (
                f"{self.monitor} has not improved on {self.sign * self.best:.6g} for {self.patience} validations"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        stopped = self.without_improvement >= self.patience
        return {"best": self.best, "without_improvement": self.without_improvement, "stopped": stopped}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = None if state["best"] is None else float(state["best"])
        self.without_improvement = int(state["without_improvement"])
        if state.get("stopped", True) and self.without_improvement >= self.patience:
            self.without_improvement = 0  # it goes on after its end: not to stop at the next validation
