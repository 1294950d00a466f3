"""What a person sees while a pipeline runs: a table of models and workers on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..summary import read_summary
from .board import Board
from .terminal import Terminal
from .trials import Trial

_EVERY_S = 0.5
_LINE_S = 10.0
_BAR = 24
"""Columns, at most."""
_GAP = 2
_BESIDE = 3
"""Rows that are no trial's: the heading, the line below, the one on which the cursor stands."""


class LiveTable:
    """Models by row, workers by column; where a model is, and how far.

    Args:
        workers: how many.
        metric: what trials are compared by.
        terminal: None: the output is a file or a pipe.
    """

    def __init__(self, trials: Mapping[int, Trial], board: Board, workers: int, metric: str, terminal: Terminal | None):
        self._trials = trials
        self._board = board
        self._workers = workers
        self._terminal = terminal
        self._names = ("train/loss", metric)
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._endings: dict[int, str] = {}
        self._next = time.monotonic() + _LINE_S if terminal is None else 0.0

    def note(self, trial: int, metrics: Mapping[str, float]) -> None:
        """The newest metrics of a trial."""
        self._metrics[trial] = metrics

    def look(self) -> None:
        """Show how things stand, if it is time to."""
        now = time.monotonic()
        if now < self._next or not self._trials:
            return
        if self._terminal is not None:
            self._next = now + _EVERY_S
            columns, rows = self._terminal.size
            self._terminal.draw(Group(self._table(columns, rows - _BESIDE), Text(self._line())))
        else:
            self._next = now + _LINE_S
            print(self._line(), flush=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        print(line, flush=True)

    def close(self) -> None:
        """The table goes; the lines stay."""
        if self._terminal is not None:
            self._terminal.clear()

    def _line(self) -> str:
        made, all_of_them = (sum(counts) for counts in zip(*map(self._visits, self._trials), strict=True))
        over = sum(trial.over for trial in self._trials.values())
        return f"{made} of {all_of_them} visits, {over} of {len(self._trials)} trials are over"

    def _table(self, columns: int, rows: int) -> Table:
        places = self._heads(columns)
        heads = ["trial", *places, "progress", "epoch", *self._names]
        view = self._in_view(rows)
        cells = [self._cells(number, len(places)) for number in view]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        widths[0] = min(widths[0], columns // 4)
        bar, others = heads.index("progress"), sum(width + _GAP for width in widths)
        widths[bar] = max(len("progress"), min(_BAR, columns - (others - widths[bar])))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for head, width in zip(heads, widths, strict=True):
            table.add_column(head, no_wrap=True, overflow="ellipsis", width=width)
        for number, row in zip(view, cells, strict=True):
            row[bar] = row[bar] or self._bar(number, widths[bar])
            table.add_row(*map(Text, row), style="dim" if self._trials[number].over else "")
        return table

    def _cells(self, number: int, places: int) -> list[str]:
        """A row, without its bar."""
        trial = self._trials[number]
        metrics = self._metrics.get(number, {})
        values = [f"{metrics[name]:.4g}" if name in metrics else "" for name in self._names]
        at = self._board.models[number]
        epoch = f"{min(at.epoch + 1, at.epochs)} of {at.epochs}"
        return [trial.name, *self._places(trial, places), self._ending(number), epoch, *values]

    def _heads(self, columns: int) -> list[str]:
        """One for each worker, as long as there is room; one for all of them where there is none."""
        for head in ("worker {}", "w{}"):
            heads = [head.format(worker) for worker in range(self._workers)]
            if sum(len(head) + 2 for head in heads) <= columns // 3:
                return heads
        return ["worker"]

    def _in_view(self, rows: int) -> list[int]:
        """The trials that there is room for: those that train, then those that wait, then those that are over."""

        def rank(number: int) -> int:
            trial = self._trials[number]
            return 2 if trial.over else int(trial.at is None)

        return sorted(sorted(self._trials, key=rank)[: max(1, rows)])

    def _places(self, trial: Trial, columns: int) -> list[str]:
        """A mark where it trains."""
        if columns < self._workers:
            return ["" if trial.at is None else str(trial.at)]
        return ["●" if trial.at == worker else "" for worker in range(self._workers)]

    def _ending(self, number: int) -> str:
        """How it has ended; "" where it has not."""
        trial = self._trials[number]
        if trial.over and number not in self._endings:
            told = read_summary(trial.folder)
            self._endings[number] = "stopped early" if told.get("stop_reason") else told.get("status", "failed")
        return self._endings.get(number, "")

    def _bar(self, number: int, width: int) -> str:
        made, wanted = self._visits(number)
        filled = round(width * made / max(1, wanted))
        return "█" * filled + "░" * (width - filled)

    def _visits(self, number: int) -> tuple[int, int]:
        """Made, and wanted in all; as many as were made where it has ended early."""
        at, partitions = self._board.models[number], len(self._board.homes)
        made = at.epoch * partitions + len(at.order) - at.busy
        return made, made if self._trials[number].over else at.epochs * partitions
