"""Estimates of the duration of sub-epochs, from measured ones."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

FIT_ITERATIONS = 4
"""Alternating fits of model costs and worker slownesses: they converge in two or three."""


class Estimates:
    """Seconds of a sub-epoch: cost of the model times slowness of the worker, both learned.

    A product of two factors predicts pairs that were never run: models x workers are many, and each model is measured
    on one worker first. A model without a measurement counts as the median of the others; so does a worker.

    Args:
        first: seconds before the first measurement.
    """

    def __init__(self, first: float = 1.0):
        self._first = first
        self._measured: dict[tuple[int, int], float] = {}
        self._fit: tuple[dict[int, float], dict[int, float]] | None = None

    def record(self, model: int, worker: int, seconds: float) -> None:
        """Add a measurement; the newest of a pair counts."""
        self._measured[model, worker] = max(seconds, 1e-9)
        self._fit = None

    def seconds(self, model: int, worker: int) -> float:
        """Estimated duration of a sub-epoch of this model on this worker."""
        measured = self._measured.get((model, worker))
        if measured is not None:
            return measured
        if not self._measured:
            return self._first
        if self._fit is None:
            self._fit = _costs_and_slownesses(self._measured)
        costs, slownesses = self._fit
        return _of(model, costs) * _of(worker, slownesses)


def _of(number: int, values: dict[int, float]) -> float:
    if number not in values:
        values[number] = median(values.values())
    return values[number]


def _costs_and_slownesses(measured: dict[tuple[int, int], float]) -> tuple[dict[int, float], dict[int, float]]:
    """Fit of cost x slowness to the measured seconds, by medians: one disturbed measurement moves nothing."""
    slownesses = {worker: 1.0 for _, worker in measured}
    costs: dict[int, float] = {}
    for _ in range(FIT_ITERATIONS):
        costs = _medians((model, seconds / slownesses[worker]) for (model, worker), seconds in measured.items())
        slownesses = _medians((worker, seconds / costs[model]) for (model, worker), seconds in measured.items())
    return costs, slownesses


def _medians(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    by_number: dict[int, list[float]] = defaultdict(list)
    for number, value in values:
        by_number[number].append(value)
    return {number: median(each) for number, each in by_number.items()}
