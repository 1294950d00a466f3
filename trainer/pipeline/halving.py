"""Stopping the worse trials early: successive halving, and Hyperband's brackets of it.

Successive halving: K. Jamieson and A. Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
Optimization, AISTATS 2016. Hyperband: L. Li et al., Hyperband: A Novel Bandit-Based Approach to Hyperparameter
Optimization, JMLR 18 (2018), algorithm 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Rung:
    """Where the trials of a bracket are compared."""

    trials: int
    """So many begin it, failed ones counted."""
    epochs: int
    """So many has a trial been trained when it is over."""


@dataclass(frozen=True)
class Out:
    """A trial that is not to be trained any further, and why."""

    trial: int
    why: str


def rungs_of(trials: int, eta: int, epochs: Sequence[int]) -> list[Rung]:
    """Each rung keeps the best of its trials, 1 in eta, rounded down; the last trial is kept in any case."""
    return [Rung(max(1, trials // eta**index), each) for index, each in enumerate(epochs)]


def halving_epochs(min_epochs: int, max_epochs: int, eta: int) -> list[int]:
    """Epochs of the rungs: min_epochs, eta times as many, ..., and at last max_epochs, where nothing is decided."""
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
    """One synchronous successive halving: a rung is decided when all its living trials have reported.

    A better value counts first, then the lower number; NaN is the worst of all. A failed trial is out, and takes one of
    the places of those that would be. After a resume the bracket is as it was when it has been told all reports again.

    Args:
        trials: their numbers.
        epochs: of a trial at the end of each rung, increasing; after the last nothing is decided.
    """

    def __init__(self, trials: Sequence[int], epochs: Sequence[int], mode: Mode, eta: int):
        self.rungs = rungs_of(len(trials), eta, epochs)
        self._mode = mode
        self._at = 0
        self._alive = set(trials)
        self._values: dict[int, float] = {}

    def report(self, trial: int, epochs: int, value: float) -> list[Out]:
        """A trial's metric after so many epochs. Returns the trials that are out by it."""
        if trial not in self._alive or self._at + 1 >= len(self.rungs) or epochs != self.rungs[self._at].epochs:
            return []
        self._values[trial] = value
        return self._decide()

    def failed(self, trial: int) -> list[Out]:
        """A trial has failed, or was ended by somebody else. Returns the trials that are out by it."""
        self._alive.discard(trial)
        self._values.pop(trial, None)
        return self._decide()

    def holds(self, trial: int) -> bool:
        """Whether a trial waits for the decision of its rung: it must not be trained until then."""
        return trial in self._values

    def _decide(self) -> list[Out]:
        if len(self._values) < len(self._alive) or not self._values:
            return []
        rung, keep = self.rungs[self._at], self.rungs[self._at + 1].trials
        ranked = sorted(self._values, key=lambda trial: (self._loss(self._values[trial]), trial))
        outs = [
            Out(trial, self._why(trial, place, rung, keep)) for place, trial in enumerate(ranked, 1) if place > keep
        ]
        self._alive = set(ranked[:keep])
        self._values = {}
        self._at += 1
        return outs

    def _loss(self, value: float) -> tuple[bool, float]:
        """Less is better."""
        return (True, 0.0) if math.isnan(value) else (False, -value if self._mode == "max" else value)

    def _why(self, trial: int, place: int, rung: Rung, keep: int) -> str:
        epochs = f"{rung.epochs} epoch" + "s" * (rung.epochs != 1)
        value, living = f"{self._values[trial]:.6g}", len(self._values)
        return f"halving: {value} after {epochs} is place {place} of {living}; the best {keep} go on"


@dataclass
class Halving:
    """Trials dealt to brackets: one of successive halving, or Hyperband's several."""

    brackets: list[Bracket]
    _of: dict[int, Bracket] = field(default_factory=dict)

    def report(self, trial: int, epochs: int, value: float) -> list[Out]:
        """See `Bracket.report`."""
        return self._of[trial].report(trial, epochs, value)

    def failed(self, trial: int) -> list[Out]:
        """See `Bracket.failed`."""
        return self._of[trial].failed(trial)

    def holds(self, trial: int) -> bool:
        """See `Bracket.holds`."""
        return self._of[trial].holds(trial)


def successive_halving(trials: Sequence[int], mode: Mode, eta: int, min_epochs: int, max_epochs: int) -> Halving:
    """One bracket for all."""
    bracket = Bracket(trials, halving_epochs(min_epochs, max_epochs, eta), mode, eta)
    return Halving([bracket], dict.fromkeys(trials, bracket))


def hyperband(trials: Sequence[int], mode: Mode, eta: int, max_epochs: int) -> Halving:
    """Trials dealt to Hyperband's brackets in turn, to each in proportion to the trials that its table gives it."""
    table = hyperband_brackets(max_epochs, eta)
    dealt: list[list[int]] = [[] for _ in table]
    for trial in trials:
        emptiest = min(range(len(table)), key=lambda index: ((len(dealt[index]) + 1) / table[index][0].trials, index))
        dealt[emptiest].append(trial)
    brackets = [
        Bracket(own, [rung.epochs for rung in rungs], mode, eta) for own, rungs in zip(dealt, table, strict=True)
    ]
    of = {trial: bracket for own, bracket in zip(dealt, brackets, strict=True) for trial in own}
    return Halving(brackets, of)
