"""How long a model's visit will take, from the visits that were made."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

SWEEPS = 4
"""Rounds in which sizes and slownesses are fitted to each other: they settle in two or three."""


class Estimates:
    """Seconds of a visit as size of the model times slowness of the worker, both learned.

    A model that no worker has had yet counts as the median of those that one has had; so does a worker.

    Args:
        first: seconds of a visit before anything is known.
    """

    def __init__(self, first: float = 1.0):
        self._first = first
        self._seen: dict[tuple[int, int], float] = {}
        self._fit: tuple[dict[int, float], dict[int, float]] | None = None

    def note(self, model: int, worker: int, seconds: float) -> None:
        """A visit has taken so long; the newest counts."""
        self._seen[model, worker] = max(seconds, 1e-9)
        self._fit = None

    def seconds(self, model: int, worker: int) -> float:
        """Of a visit of this model to this worker."""
        known = self._seen.get((model, worker))
        if known is not None:
            return known
        if not self._seen:
            return self._first
        if self._fit is None:
            self._fit = _sizes_and_slownesses(self._seen)
        sizes, slownesses = self._fit
        return _of(model, sizes) * _of(worker, slownesses)


def _of(number: int, values: dict[int, float]) -> float:
    if number not in values:
        values[number] = median(values.values())
    return values[number]


def _sizes_and_slownesses(seen: dict[tuple[int, int], float]) -> tuple[dict[int, float], dict[int, float]]:
    """The size of each model and the slowness of each worker whose products come near the seconds seen."""
    slownesses = {worker: 1.0 for _, worker in seen}
    sizes: dict[int, float] = {}
    for _ in range(SWEEPS):
        sizes = _medians((model, took / slownesses[worker]) for (model, worker), took in seen.items())
        slownesses = _medians((worker, took / sizes[model]) for (model, worker), took in seen.items())
    return sizes, slownesses


def _medians(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    by_number: dict[int, list[float]] = defaultdict(list)
    for number, value in values:
        by_number[number].append(value)
    return {number: median(each) for number, each in by_number.items()}
