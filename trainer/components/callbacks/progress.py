"""Progress of a run: a bar on a terminal and in a notebook, plain lines elsewhere."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from time import monotonic

from rich import get_console
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text
from typing_extensions import override

from ...base.heartbeat import PHASES, HeartbeatReading, heartbeat
from ...base.log import log
from ...core.callback_contract import CallbackContract
from ...core.metric_log import NoReduction
from ...core.state import RunState
from ...core.step_timer import Pace
from .notebook_bar import NotebookBar, in_notebook

_REFRESH_S = 0.2
_LINE_S = 10.0
_LABELLED = 64
"""Columns of a terminal from which on the times beside the bar have labels."""
_GAP = "  "
"""Between two metrics of a line."""
_LONGEST_SILENCE_S = 30.0
"""Seconds without output, as in a long validation, after which a line shows the current phase."""


class Progress(CallbackContract):
    """Steps done, time left, and the newest metrics."""

    def __init__(self) -> None:
        self._bar: _Bar | NotebookBar | None = None
        self._phase_reporter: _PhaseReporter | None = None
        self._next = math.inf

    @override
    def on_fit_start(self, state: RunState) -> None:
        if not (state.fabric.is_global_zero and state.config.trainer.enable_progress_bar):
            return
        self._next = monotonic() + _LINE_S
        self._pace = Pace(state.step, state.config.batch_size)
        if sys.stdout.isatty():
            self._bar = _Bar(state)
            self._bar.start()
        elif in_notebook():
            self._bar = NotebookBar(state)
        else:
            self._phase_reporter = _PhaseReporter(state)

    @override
    def on_step_end(self, state: RunState) -> None:
        now = monotonic()
        if now < self._next:
            return
        if self._bar is not None:
            self._next = now + _REFRESH_S
            self._draw(self._bar, state)
        else:
            self._next = now + _LINE_S
            self._print(f"{_position(state)}  {self._metrics(state)}")

    @override
    def on_epoch_end(self, state: RunState) -> None:
        if self._next == math.inf:
            return
        self._next = monotonic() + (_REFRESH_S if self._bar else _LINE_S)
        if self._bar is not None:
            self._draw(self._bar, state)
        cut_short = state.step_in_epoch > 0
        epoch = f"epoch {state.epoch + cut_short} of {state.config.trainer.max_epochs}"
        where = f", ended at step {state.step}" if cut_short else ""
        self._print(f"{epoch}{where}  {_format_values(state.metrics, state)}")

    @override
    def on_fit_end(self, state: RunState) -> None:
        self._close()

    @override
    def on_exception(self, state: RunState) -> None:
        self._close()

    def _draw(self, bar: "_Bar | NotebookBar", state: RunState) -> None:
        if isinstance(bar, NotebookBar):
            bar.show(state, _position(state), self._metrics(state))
        else:
            bar.show(state)

    def _print(self, line: str) -> None:
        log.info("%s", line)
        if self._phase_reporter is not None:
            self._phase_reporter.reset()

    def _metrics(self, state: RunState) -> str:
        """Metrics and time left; before the first logging this worker's own last values."""
        lap = self._pace.lap(state.step, state.total_steps)
        values = dict(state.metrics)
        if not _format_values(values, state):
            values = state.log.step_values(NoReduction(state.fabric.device))
        if lap.samples_per_second is not None:
            values[state.own_name("samples_per_second")] = lap.samples_per_second
        left = "" if lap.seconds_left is None else f"  {timedelta(seconds=round(lap.seconds_left))} left"
        return _format_values(values, state) + left

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._phase_reporter is not None:
            self._phase_reporter.end()
            self._phase_reporter = None


class _Bar(RichProgress):
    """Epoch, bar, steps and times on one line, and all metrics below it."""

    def __init__(self, state: RunState):
        self._metrics = ""
        after, left = ([TextColumn(label)] if get_console().width >= _LABELLED else [] for label in ("after", "left"))
        super().__init__(
            TextColumn("epoch {task.fields[epoch]}"), BarColumn(bar_width=None), MofNCompleteColumn(),
            *after, TimeElapsedColumn(), TimeRemainingColumn(), *left, transient=True,
            refresh_per_second=4, expand=True,
        )  # fmt: skip
        self._task = self.add_task("", total=state.total_steps, completed=state.step, epoch=state.epoch + 1)

    def show(self, state: RunState) -> None:
        self._metrics = _format_values(state.metrics, state)
        self.update(self._task, completed=state.step, epoch=state.epoch + 1)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield _MetricLines(self._metrics)


@dataclass(frozen=True)
class _MetricLines:
    """Metrics in as many lines as the terminal's width needs."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from map(Text, _lines(self.text, options.max_width))


class _PhaseReporter:
    """Thread that prints the current phase after a long time without output."""

    def __init__(self, state: RunState):
        self._state = state
        self._ended, self._since = Event(), monotonic()
        Thread(target=self._watch, daemon=True, name="progress").start()

    def reset(self) -> None:
        """Reset the timer: a line was printed."""
        self._since = monotonic()

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(max(0.05, self._since + _LONGEST_SILENCE_S - monotonic())):
            if monotonic() >= self._since + _LONGEST_SILENCE_S:
                log.info("%s  in %s", _position(self._state), PHASES[HeartbeatReading.read(heartbeat.memory).phase])
                self.reset()


def _position(state: RunState) -> str:
    epoch = min(state.epoch + 1, state.config.trainer.max_epochs)
    return f"epoch {epoch}, step {state.step} of {state.total_steps}"


def _lines(metrics: str, width: int) -> list[str]:
    """The metrics in lines of a terminal, none of them divided."""
    lines = [""]
    for each in metrics.split(_GAP):
        longer = f"{lines[-1]}{_GAP}{each}" if lines[-1] else each
        if not lines[-1] or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(each)
    return lines


def _format_values(metrics: dict[str, float], state: RunState) -> str:
    usual = ("loss", "acc")
    shown = {n: v for n, v in metrics.items() if n in state.shown or n.split("/")[-1].split("_")[0] in usual}
    speed = metrics.get(state.own_name("samples_per_second"))
    return _GAP.join([f"{n} {v:.4g}" for n, v in shown.items()] + ([f"{speed:.0f} samples/s"] if speed else []))
