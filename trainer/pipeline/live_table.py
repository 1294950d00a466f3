"""What a person sees while a pipeline runs: a table of models and workers on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .board import Board
from .trials import Trial

_EVERY_S = 0.5
_LINE_S = 10.0
_BAR = 24


class LiveTable:
    """Models by row, workers by column; where a model is, and how far.

    Args:
        workers: how many.
    """

    def __init__(self, trials: Mapping[int, Trial], board: Board, workers: int):
        self._trials = trials
        self._board = board
        self._workers = workers
        self._metrics: dict[int, str] = {}
        self._live: Live | None = None
        self._next = time.monotonic() + _LINE_S
        if sys.stdout.isatty():
            self._live = Live(console=Console(), auto_refresh=False, transient=True)
            self._live.start()
            self._next = 0.0

    def note(self, trial: int, metrics: Mapping[str, float]) -> None:
        """The newest metrics of a trial."""
        shown = [f"{name} {metrics[name]:.4g}" for name in ("train/loss", "val/acc") if name in metrics]
        self._metrics[trial] = "  ".join(shown)

    def look(self) -> None:
        """Show how things stand, if it is time to."""
        now = time.monotonic()
        if now < self._next or not self._trials:
            return
        if self._live is not None:
            self._next = now + _EVERY_S
            self._live.update(self._table(), refresh=True)
        else:
            self._next = now + _LINE_S
            made, all_of_them = (sum(counts) for counts in zip(*map(self._visits, self._trials), strict=True))
            over = sum(trial.over for trial in self._trials.values())
            print(f"{made} of {all_of_them} visits, {over} of {len(self._trials)} trials are over", flush=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(line)
        else:
            print(line, flush=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _table(self) -> Table:
        table = Table("trial", *(f"worker {number}" for number in range(self._workers)), "progress", "epoch", "metrics")
        for number, trial in self._trials.items():
            made, wanted = self._visits(number)
            filled = round(_BAR * made / max(1, wanted))
            at = self._board.models[number]
            table.add_row(
                trial.name, *self._places(trial), "█" * filled + "░" * (_BAR - filled),
                f"{min(at.epoch + 1, at.epochs)} of {at.epochs}", self._metrics.get(number, ""),
            )  # fmt: skip
        return table

    def _places(self, trial: Trial) -> Sequence[str]:
        """A mark where it trains."""
        return ["●" if trial.at == worker else "" for worker in range(self._workers)]

    def _visits(self, number: int) -> tuple[int, int]:
        """Made, and wanted in all; as many as were made where it has ended early."""
        at, partitions = self._board.models[number], len(self._board.homes)
        made = at.epoch * partitions + len(at.order) - at.busy
        return made, made if self._trials[number].over else at.epochs * partitions
