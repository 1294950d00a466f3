"""Which trials of a pipeline are stopped early; what that was decided by is kept, for a resumption."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config import Pipeline
from .halving import Halving, Out, hyperband, successive_halving

FILE = "early_stopping.csv"
_COLUMNS = ("trial", "epochs", "value")


class Selection:
    """Successive halving or Hyperband over the trials of a pipeline, or none.

    Args:
        epochs: of every trial, by its number; finished ones too: they were compared with the others.
    """

    def __init__(self, settings: Pipeline, run_dir: Path, epochs: Sequence[int]):
        self._metric = settings.metric
        self._file = run_dir / FILE
        self._halving = _halving(settings, epochs)

    def resumed(self) -> Iterator[Out]:
        """Tell it again what it was told. Yields the trials that were out by it."""
        if self._halving is None or not self._file.exists():
            return
        with open(self._file, newline="") as file:
            for row in csv.DictReader(file):
                if row["value"]:
                    yield from self._halving.report(int(row["trial"]), int(row["epochs"]), float(row["value"]))
                else:
                    yield from self._halving.failed(int(row["trial"]))

    def report(self, trial: int, epochs: int, metrics: dict[str, float]) -> list[Out]:
        """A trial has been trained for so many epochs. Returns the trials that are out by it."""
        if self._halving is None:
            return []
        value = metrics.get(self._metric, math.nan)
        self._keep(trial, epochs, repr(value))
        return self._halving.report(trial, epochs, value)

    def ended(self, trial: int) -> list[Out]:
        """A trial is done, or has failed. Returns the trials that are out by it."""
        if self._halving is None:
            return []
        self._keep(trial, "", "")
        return self._halving.failed(trial)

    def holds(self, trial: int) -> bool:
        """Whether a trial waits for the others."""
        return self._halving is not None and self._halving.holds(trial)

    def _keep(self, *row: object) -> None:
        new = not self._file.exists()
        with open(self._file, "a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(_COLUMNS)
            writer.writerow(row)


def _halving(settings: Pipeline, epochs: Sequence[int]) -> Halving | None:
    trials = range(len(epochs))
    match settings.early_stopping:
        case "halving":
            return successive_halving(trials, settings.mode, settings.eta, settings.min_epochs, max(epochs))
        case "hyperband":
            return hyperband(trials, settings.mode, settings.eta, max(epochs))
        case _:
            return None
