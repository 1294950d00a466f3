"""Figures of an exam: errors of predicted step times, of intervals, and of the choice among strategies."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from exam_predictors import alone_seconds
from exam_rows import Example
from numpy.typing import NDArray

Array = NDArray[Any]
HARD = 1.1
"""A step this many times as long as on one device has more than 10 % overhead."""
EQUAL = 1.05
"""A choice this close to the best one is right."""


@dataclass(frozen=True)
class Errors:
    """Of predicted times against measured ones."""

    rows: int
    median: float
    ninth: float
    """90th percentile."""
    factor: float
    """exp(mean |ln(predicted / measured)|)."""

    @classmethod
    def of(cls, predicted: Array, measured: Array) -> "Errors":
        if not len(measured):
            return cls(0, float("nan"), float("nan"), float("nan"))
        errors = np.abs(predicted / measured - 1)
        factor = np.exp(np.mean(np.abs(np.log(predicted / measured))))
        return cls(len(measured), float(np.median(errors)), float(np.percentile(errors, 90)), float(factor))

    def __str__(self) -> str:
        return f"median {self.median:6.1%}  90th {self.ninth:6.1%}  factor {self.factor:.3f}"


def stretches(examples: Sequence[Example]) -> Array:
    return np.array([example.stretch for example in examples])


def each(examples: Sequence[Example], predictor: Callable[[Example], float]) -> Array:
    return np.array([predictor(example) for example in examples])


def by_report(examples: Sequence[Example]) -> dict[str, Array]:
    """Masks of the rows of each publication."""
    names = np.array([example.row.report for example in examples])
    return {name: names == name for name in sorted(set(names.tolist()))}


def worse_reports(examples: Sequence[Example], predictions: Mapping[str, Array], points: float = 0.02) -> list[str]:
    """Publications of which the planner's median error is more than `points` above that of another predictor."""
    measured, found = stretches(examples), []
    for name, mask in by_report(examples).items():
        medians = {who: Errors.of(p[mask], measured[mask]).median for who, p in predictions.items()}
        best = min(medians["linear"], medians["nominal"])
        if medians["planner"] > best + points:
            found.append(f"{name}: {medians['planner']:.1%} against {best:.1%} ({mask.sum()} rows)")
    return found


def choices(examples: Sequence[Example], predicted: Array) -> tuple[int, int]:
    """Cells of one configuration and several strategies, and those in which the chosen one is as good as the best."""
    cells: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        row = example.row
        machine = (row.report, row.machine, row.device, row.devices, row.nodes)
        cells[(*machine, row.system, row.model, row.precision, row.batch)].append(index)
    several = [cell for cell in cells.values() if len({examples[i].row.strategy for i in cell}) > 1]
    right = 0
    for cell in several:
        seconds = {i: examples[i].stretch * alone_seconds(examples[i]) for i in cell}
        chosen = min(cell, key=lambda i: predicted[i] * alone_seconds(examples[i]))
        right += seconds[chosen] <= EQUAL * min(seconds.values())
    return len(several), right
