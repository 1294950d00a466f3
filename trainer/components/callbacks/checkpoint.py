"""Callback that writes checkpoints and removes old ones."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from typing_extensions import override

from ...base.log import log
from ...core.callback_contract import CallbackContract
from ...core.state import RunState
from ...runs import checkpoints
from ...runs.checkpoints import LAST, folder, path_in


class Checkpoint(CallbackContract):
    """Retention of the newest and the best checkpoints of a run.

    Args:
        monitor: metric that ranks the best; None: only the newest are kept.
        mode: whether a larger or a smaller value is better.
        save_top_k: number of the best to keep.
        keep_last: number of the newest to keep; two, so that a damaged one has a predecessor.
        every_n_epochs: write at the end of every n-th epoch.
        every_n_steps: and after every n-th optimizer step.

    Raises:
        ValueError: keep_last below 1, an unknown mode.
    """

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["max", "min"] = "max",
        save_top_k: int = 1,
        keep_last: int = 2,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
    ):
        if keep_last < 1 or mode not in ("max", "min"):
            raise ValueError(f"callbacks.checkpoint: keep_last={keep_last} must be over 0, mode={mode!r} max or min")
        self.monitor = monitor
        self.sign = 1.0 if mode == "max" else -1.0
        self.save_top_k = save_top_k
        self.keep_last = keep_last
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.best: list[tuple[float, int]] = []
        """(value, step) of the best checkpoints, best first."""
        self._best_when_saved: list[int] = []
        self._seen = 0
        self._folder: Path | None = None

    # Attributes of Lightning's ModelCheckpoint that modules read from `self.trainer.checkpoint_callback`.

    @property
    def dirpath(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    @property
    def best_model_path(self) -> str:
        """Empty before the first ranking, as in Lightning."""
        return "" if self._folder is None or not self.best else str(path_in(self._folder, self.best[0][1]))

    @property
    def best_model_score(self) -> torch.Tensor | None:
        return torch.tensor(self.best[0][0]) if self.best else None

    @property
    def last_model_path(self) -> str:
        """Empty before the first checkpoint, as in Lightning."""
        there_is = self._folder is not None and (self._folder / LAST).exists()
        return str(self._folder / LAST) if self._folder is not None and there_is else ""

    @override
    def on_fit_start(self, state: RunState) -> None:
        self._folder = folder(state.run_dir)
        self._seen = state.step

    @override
    def on_step_end(self, state: RunState) -> None:
        # an asynchronous worker skips steps
        if self.every_n_steps is not None and state.step // self.every_n_steps > self._seen // self.every_n_steps:
            state.save_wanted = True
        self._seen = max(self._seen, state.step)

    @override
    def on_validation_end(self, state: RunState) -> None:
        """Rank inside an epoch (its end ranks by itself): a new best one needs a file."""
        if state.step_in_epoch:
            self._rank(state)
            state.save_wanted = state.save_wanted or any(step == state.step for _, step in self.best)

    @override
    def on_epoch_end(self, state: RunState) -> None:
        last = state.step >= state.total_steps or state.stop_reason is not None
        if state.epoch % self.every_n_epochs == 0 or last:
            self._rank(state)
            state.save_wanted = True

    def _rank(self, state: RunState) -> None:
        if self.monitor is None or state.validated_at != state.step:
            return
        value = state.metrics.get(self.monitor)
        if value is None:
            log.warning(
                "callbacks.checkpoint.monitor=%s was not logged; logged: %s", self.monitor, ", ".join(state.metrics)
            )
            self.monitor = None
        elif not math.isnan(value):
            self.best = [entry for entry in self.best if entry[1] != state.step]
            self.best.append((value, state.step))
            self.best.sort(key=lambda entry: (-self.sign * entry[0], entry[1]))
            del self.best[self.save_top_k :]

    @override
    def on_checkpoint(self, state: RunState) -> None:
        """Remove checkpoints that are neither among the newest nor the best. On rank 0, after the new one is safe.

        The best are those of when it was saved: a later one may not have its file yet.
        """
        self._seen = max(self._seen, state.step)
        if not state.fabric.is_global_zero:
            return
        kept = set(self._best_when_saved)
        obsolete = [
            old for old in checkpoints.intact(state.run_dir)[self.keep_last :] if checkpoints.step_of(old) not in kept
        ]
        # to free the blocks of a large file takes milliseconds
        state.checkpoint_writer.defer(lambda: _remove(obsolete))

    @override
    def state_dict(self) -> dict[str, Any]:
        self._best_when_saved = [step for _, step in self.best]
        return {"best": [list(entry) for entry in self.best]}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = [(float(value), int(step)) for value, step in state["best"]]


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        checkpoints.remove(path)
