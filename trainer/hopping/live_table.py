"""Live view of a hopping run: a table of models and workers on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..runs.summary import read_summary
from .progress import HoppingProgress
from .terminal import Terminal
from .trials import HoppingTrial

_REFRESH_S = 0.5
_LINE_INTERVAL_S = 10.0
_MAX_BAR = 24
"""Columns."""
_GAP = 2
_OTHER_ROWS = 3
"""Rows of no trial: the heading, the line below, the line of the cursor."""


class LiveTable:
    """Table with a row for each model and a column for each worker, with each model's place and progress.

    Args:
        metric: that trials are compared by.
        terminal: None: the output is a file or a pipe.
    """

    def __init__(
        self,
        trials: Mapping[int, HoppingTrial],
        progress: HoppingProgress,
        workers: int,
        metric: str,
        terminal: Terminal | None,
    ):
        self._trials = trials
        self._progress = progress
        self._workers = workers
        self._terminal = terminal
        self._names = ("train/loss", metric)
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._outcomes: dict[int, str] = {}
        self._next = time.monotonic() + _LINE_INTERVAL_S if terminal is None else 0.0

    def update_metrics(self, trial: int, metrics: Mapping[str, float]) -> None:
        """Set the newest metrics of a trial."""
        self._metrics[trial] = metrics

    def refresh(self) -> None:
        """Show the present state, if it is time to."""
        now = time.monotonic()
        if now < self._next or not self._trials:
            return
        if self._terminal is not None:
            self._next = now + _REFRESH_S
            columns, rows = self._terminal.size
            self._terminal.draw(Group(self._table(columns, rows - _OTHER_ROWS), Text(self._status_line())))
        else:
            self._next = now + _LINE_INTERVAL_S
            print(self._status_line(), flush=True)

    def print_line(self, line: str) -> None:
        """Print a permanent line."""
        print(line, flush=True)

    def close(self) -> None:
        """Remove the table; printed lines remain."""
        if self._terminal is not None:
            self._terminal.clear()

    def _status_line(self) -> str:
        completed, total = (sum(counts) for counts in zip(*map(self._counts, self._trials), strict=True))
        finished = sum(trial.finished for trial in self._trials.values())
        return f"{completed} of {total} sub-epochs, {finished} of {len(self._trials)} trials are finished"

    def _table(self, columns: int, rows: int) -> Table:
        worker_heads = self._worker_heads(columns)
        heads = ["trial", *worker_heads, "progress", "epoch", *self._names]
        visible = self._visible(rows)
        cells = [self._cells(number, len(worker_heads)) for number in visible]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        widths[0] = min(widths[0], columns // 4)
        bar, others = heads.index("progress"), sum(width + _GAP for width in widths)
        widths[bar] = max(len("progress"), min(_MAX_BAR, columns - (others - widths[bar])))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for head, width in zip(heads, widths, strict=True):
            table.add_column(head, no_wrap=True, overflow="ellipsis", width=width)
        for number, row in zip(visible, cells, strict=True):
            row[bar] = row[bar] or self._bar(number, widths[bar])
            table.add_row(*map(Text, row), style="dim" if self._trials[number].finished else "")
        return table

    def _cells(self, number: int, columns: int) -> list[str]:
        """Row without its bar."""
        trial = self._trials[number]
        metrics = self._metrics.get(number, {})
        values = [f"{metrics[name]:.4g}" if name in metrics else "" for name in self._names]
        model = self._progress.models[number]
        epoch = f"{min(model.epoch + 1, model.epochs)} of {model.epochs}"
        return [trial.name, *self._marks(trial, columns), self._outcome(number), epoch, *values]

    def _worker_heads(self, columns: int) -> list[str]:
        """Headings, one for each worker if there is room, else one for all."""
        for head in ("worker {}", "w{}"):
            heads = [head.format(worker) for worker in range(self._workers)]
            if sum(len(head) + 2 for head in heads) <= columns // 3:
                return heads
        return ["worker"]

    def _visible(self, rows: int) -> list[int]:
        """Trials that there is room for: training ones, then waiting ones, then finished ones."""

        def rank(number: int) -> int:
            trial = self._trials[number]
            return 2 if trial.finished else int(trial.trained_by is None)

        return sorted(sorted(self._trials, key=rank)[: max(1, rows)])

    def _marks(self, trial: HoppingTrial, columns: int) -> list[str]:
        """Cells of the workers, with a mark at the one that trains the trial."""
        if columns < self._workers:
            return ["" if trial.trained_by is None else str(trial.trained_by)]
        return ["●" if trial.trained_by == worker else "" for worker in range(self._workers)]

    def _outcome(self, number: int) -> str:
        """Final status of a trial; "" while it is not finished."""
        trial = self._trials[number]
        if trial.finished and number not in self._outcomes:
            summary = read_summary(trial.folder)
            self._outcomes[number] = "stopped early" if summary.get("stop_reason") else summary.get("status", "failed")
        return self._outcomes.get(number, "")

    def _bar(self, number: int, width: int) -> str:
        completed, total = self._counts(number)
        filled = round(width * completed / max(1, total))
        return "█" * filled + "░" * (width - filled)

    def _counts(self, number: int) -> tuple[int, int]:
        """Completed sub-epochs and their total; of a finished trial both are what it completed."""
        model, partitions = self._progress.models[number], len(self._progress.homes)
        completed = model.epoch * partitions + len(model.order) - model.busy
        return completed, completed if self._trials[number].finished else model.epochs * partitions
