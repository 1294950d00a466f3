"""What a person sees while a run trains: a bar on a terminal, plain lines elsewhere."""

import math
import sys
from time import monotonic

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..log import log
from ..state import RunState

_REFRESH_S = 0.2
_LINE_S = 10.0


class Progress:
    """Steps done, time left, and the newest metrics."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._next = 0.0

    def on_fit_start(self, state: RunState) -> None:
        if not (state.fabric.is_global_zero and state.config.trainer.enable_progress_bar):
            self._next = math.inf
            return
        self._next = monotonic() + _LINE_S
        if sys.stdout.isatty():
            self._bar = Bar(
                TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
                TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[metrics]}"),
                transient=True, refresh_per_second=4,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=state.total_steps, completed=state.step, epoch=0, metrics="")
            self._bar.start()

    def on_step_end(self, state: RunState) -> None:
        now = monotonic()
        if now < self._next:
            return
        if self._bar is not None:
            self._next = now + _REFRESH_S
            self._update(state)
        else:
            self._next = now + _LINE_S
            log.info("epoch %d, step %d of %d  %s", state.epoch + 1, state.step, state.total_steps, _metrics(state))

    def on_epoch_end(self, state: RunState) -> None:
        if self._next == math.inf:
            return
        self._next = monotonic() + (_REFRESH_S if self._bar else _LINE_S)
        if self._bar is not None:
            self._update(state)
        log.info("epoch %d of %d  %s", state.epoch, state.config.trainer.max_epochs, _metrics(state))

    def _update(self, state: RunState) -> None:
        assert self._bar is not None
        self._bar.update(self._task, completed=state.step, epoch=state.epoch + 1, metrics=_metrics(state))

    def on_fit_end(self, state: RunState) -> None:
        self._close()

    def on_exception(self, state: RunState) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _metrics(state: RunState) -> str:
    usual = ("loss", "acc")
    shown = {n: v for n, v in state.metrics.items() if n in state.shown or n.split("/")[-1].split("_")[0] in usual}
    speed = state.metrics.get("samples_per_second")
    return "  ".join([f"{n} {v:.4g}" for n, v in shown.items()] + ([f"{speed:.0f} samples/s"] if speed else []))
