"""Search for the largest batch size that fits: doubling, then bisection."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """Training steps with one batch size.

    Attributes:
        size: the batch size.
        taken: samples of a step; fewer than `size` where the training set has no more. 0: it does not fit.
        peak_gb: largest memory of a worker, in 2^30 bytes; None: unknown.
        why: the error of one that does not fit.
    """

    size: int
    taken: int
    peak_gb: float | None = None
    why: str = ""

    @property
    def fits(self) -> bool:
        return self.taken > 0


def probes(probe: Callable[[int], Probe], start: int, unit: int, most: int | None, tolerance: float) -> Iterator[Probe]:
    """Probes until the smallest batch size that does not fit is at most a `tolerance` above the largest that does.

    Args:
        probe: tries a batch size.
        start: the first one.
        unit: batch sizes are multiples of it.
        most: the largest one that is tried.
    """
    low, high = 0, None
    size = max(unit, start // unit * unit)
    while True:
        found = probe(size)
        yield found
        if found.fits:
            low = size
            if found.taken < size or size + unit > (most or size + unit):
                return
        else:
            high = size
        if high is None:
            size = 2 * size if most is None else min(2 * size, most // unit * unit)
            continue
        if high - low <= max(unit, tolerance * low):
            return
        # nothing has fitted: halved as it would be doubled
        size = max(unit, (low + high) // 2 // unit * unit)
        if size <= low:
            return
