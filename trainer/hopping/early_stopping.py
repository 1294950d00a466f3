"""Early stopping of trials: successive halving and Hyperband, and their reports on disk.

Successive halving: K. Jamieson and A. Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
Optimization, AISTATS 2016. Hyperband: L. Li et al., Hyperband: A Novel Bandit-Based Approach to Hyperparameter
Optimization, JMLR 18 (2018), algorithm 1.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..config.schema import Pipeline

FILE = "early_stopping.csv"
_COLUMNS = ("trial", "epochs", "value")

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Rung:
    """A point at which the trials of a bracket are compared."""

    trials: int
    """Number of trials that begin it, failed ones included."""
    epochs: int
    """Epochs of a trial at its end."""


@dataclass(frozen=True)
class StoppedEarly:
    """A trial whose training ends early, and the reason."""

    trial: int
    reason: str


def rungs_of(trials: int, eta: int, epochs: Sequence[int]) -> list[Rung]:
    """Rungs that keep the best 1 in eta of their trials, rounded down, but at least one."""
    return [Rung(max(1, trials // eta**index), each) for index, each in enumerate(epochs)]


def halving_epochs(min_epochs: int, max_epochs: int, eta: int) -> list[int]:
    """Epochs of the rungs: min_epochs, eta times as many, ..., and finally max_epochs, where nothing is decided."""
    epochs = []
    while min_epochs < max_epochs:
        epochs.append(min_epochs)
        min_epochs *= eta
    return [*epochs, max_epochs]


def hyperband_brackets(max_epochs: int, eta: int) -> list[list[Rung]]:
    """Hyperband's table, the most exploring bracket first.

    Bracket s begins with ceil((s_max + 1) / (s + 1) eta^s) trials, of max_epochs / eta^s epochs (rounded down) each,
    where eta^s_max is at most max_epochs.
    """
    deepest = 0
    while eta ** (deepest + 1) <= max_epochs:
        deepest += 1
    brackets = []
    for s in range(deepest, -1, -1):
        trials = -((deepest + 1) * eta**s // -(s + 1))
        brackets.append(rungs_of(trials, eta, [max_epochs // eta ** (s - index) for index in range(s + 1)]))
    return brackets


class Bracket:
    """One synchronous successive halving: a rung is decided when all its remaining trials have reported.

    Synchronous, so that the decisions do not depend on which worker was faster. Better values rank first, ties by
    number; NaN is worst. A failed trial is out, in place of one that would have been stopped. After a resume the
    reports are replayed, which restores the bracket.

    Args:
        trials: their numbers.
        epochs: of a trial at the end of each rung, increasing; nothing is decided after the last.
    """

    def __init__(self, trials: Sequence[int], epochs: Sequence[int], mode: Mode, eta: int):
        self.rungs = rungs_of(len(trials), eta, epochs)
        self._mode = mode
        self._current = 0
        self._remaining = set(trials)
        self._values: dict[int, float] = {}

    def report(self, trial: int, epochs: int, value: float) -> list[StoppedEarly]:
        """Add a trial's metric after some epochs. Returns the trials stopped by it."""
        last = self._current + 1 >= len(self.rungs)
        if trial not in self._remaining or last or epochs != self.rungs[self._current].epochs:
            return []
        self._values[trial] = value
        return self._decide()

    def remove(self, trial: int) -> list[StoppedEarly]:
        """Remove a trial that failed or ended by itself. Returns the trials stopped by it."""
        self._remaining.discard(trial)
        self._values.pop(trial, None)
        return self._decide()

    def holds(self, trial: int) -> bool:
        """Whether a trial must wait for the decision of its rung."""
        return trial in self._values

    def _decide(self) -> list[StoppedEarly]:
        if len(self._values) < len(self._remaining) or not self._values:
            return []
        rung, keep = self.rungs[self._current], self.rungs[self._current + 1].trials
        ranked = sorted(self._values, key=lambda trial: (self._loss(self._values[trial]), trial))
        stopped = [
            StoppedEarly(trial, self._reason(trial, place, rung, keep))
            for place, trial in enumerate(ranked, 1)
            if place > keep
        ]
        self._remaining = set(ranked[:keep])
        self._values = {}
        self._current += 1
        return stopped

    def _loss(self, value: float) -> tuple[bool, float]:
        """Sort key; less is better."""
        return (True, 0.0) if math.isnan(value) else (False, -value if self._mode == "max" else value)

    def _reason(self, trial: int, place: int, rung: Rung, keep: int) -> str:
        epochs = f"{rung.epochs} epoch" + "s" * (rung.epochs != 1)
        value, compared = f"{self._values[trial]:.6g}", len(self._values)
        return f"halving: {value} after {epochs} is place {place} of {compared}; the best {keep} go on"


@dataclass
class Halving:
    """Trials distributed over brackets: one of successive halving, or Hyperband's several."""

    brackets: list[Bracket]
    _of: dict[int, Bracket] = field(default_factory=dict)

    def report(self, trial: int, epochs: int, value: float) -> list[StoppedEarly]:
        """See `Bracket.report`."""
        return self._of[trial].report(trial, epochs, value)

    def remove(self, trial: int) -> list[StoppedEarly]:
        """See `Bracket.remove`."""
        return self._of[trial].remove(trial)

    def holds(self, trial: int) -> bool:
        """See `Bracket.holds`."""
        return self._of[trial].holds(trial)


def successive_halving(trials: Sequence[int], mode: Mode, eta: int, min_epochs: int, max_epochs: int) -> Halving:
    """One bracket for all trials."""
    bracket = Bracket(trials, halving_epochs(min_epochs, max_epochs, eta), mode, eta)
    return Halving([bracket], dict.fromkeys(trials, bracket))


def hyperband(trials: Sequence[int], mode: Mode, eta: int, max_epochs: int) -> Halving:
    """Trials distributed over Hyperband's brackets in turn, in proportion to the numbers in its table."""
    table = hyperband_brackets(max_epochs, eta)
    members: list[list[int]] = [[] for _ in table]
    for trial in trials:
        emptiest = min(range(len(table)), key=lambda index: ((len(members[index]) + 1) / table[index][0].trials, index))
        members[emptiest].append(trial)
    brackets = [
        Bracket(own, [rung.epochs for rung in rungs], mode, eta) for own, rungs in zip(members, table, strict=True)
    ]
    of = {trial: bracket for own, bracket in zip(members, brackets, strict=True) for trial in own}
    return Halving(brackets, of)


class TrialEarlyStopping:
    """Successive halving, Hyperband or neither over the trials of a hopping run, its reports kept on disk.

    Args:
        epochs: of every trial, by its number, including finished ones, which were compared with the others.
    """

    def __init__(self, settings: Pipeline, run_dir: Path, epochs: Sequence[int]):
        self._metric = settings.metric
        self._file = run_dir / FILE
        self._halving = _halving(settings, epochs)

    def replay_reports(self) -> Iterator[StoppedEarly]:
        """Replay the reports on disk after a resume. Yields the trials stopped by them."""
        if self._halving is None or not self._file.exists():
            return
        with open(self._file, newline="") as file:
            for row in csv.DictReader(file):
                if row["value"]:
                    yield from self._halving.report(int(row["trial"]), int(row["epochs"]), float(row["value"]))
                else:
                    yield from self._halving.remove(int(row["trial"]))

    def report(self, trial: int, epochs: int, metrics: dict[str, float]) -> list[StoppedEarly]:
        """Add a trial's metrics after some epochs. Returns the trials stopped by it."""
        if self._halving is None:
            return []
        value = metrics.get(self._metric, math.nan)
        self._append(trial, epochs, repr(value))
        return self._halving.report(trial, epochs, value)

    def remove(self, trial: int) -> list[StoppedEarly]:
        """Remove a trial that is done or failed. Returns the trials stopped by it."""
        if self._halving is None:
            return []
        self._append(trial, "", "")
        return self._halving.remove(trial)

    def holds(self, trial: int) -> bool:
        """Whether a trial must wait for the others."""
        return self._halving is not None and self._halving.holds(trial)

    def _append(self, *row: object) -> None:
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
