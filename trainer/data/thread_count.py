"""Number of reading threads: given, or chosen by measuring the first batches."""

from statistics import median

from .reading_threads import ReadingThreads

_LEAST_S = 0.1
_LEAST_SAMPLES = 32
_ROUNDS = 3
_AS_FAST = 0.96
"""Fewer threads are taken if they read at least this part of the images per second of the fastest number."""


class ThreadCount:
    """Chooses the limit of reading threads while they read.

    The first batches are read by as many threads as there are cores, and then half as many in turns with it: if those
    are as fast they stay, and half of them is tried. What is read does not depend on it.

    Args:
        threads: begin with the largest number.

    Attributes:
        measured: samples per second of each number that was tried.
    """

    def __init__(self, threads: ReadingThreads):
        self._threads = threads
        self.measured: dict[int, list[float]] = {}
        self._best = threads.limit
        self._chosen = threads.limit == 1
        self._mark = (0, 0.0)
        self._settled = True
        """Whether all that was begun with another number is read."""

    def after_batch(self) -> None:
        """Count a batch; to be called after each."""
        if self._chosen:
            return
        threads = self._threads
        samples, seconds = threads.samples - self._mark[0], threads.busy_seconds() - self._mark[1]
        if samples < _LEAST_SAMPLES or seconds < _LEAST_S:
            return
        if self._settled:
            self.measured.setdefault(threads.limit, []).append(samples / seconds)
            self._next()
        self._mark = (threads.samples, threads.busy_seconds())
        self._settled = not self._settled or self._chosen

    def _next(self) -> None:
        best, fewer = self._best, self._best // 2
        rounds = min(len(self.measured.get(number, ())) for number in (best, fewer))
        if rounds < _ROUNDS:
            self._threads.limit = fewer if self._threads.limit == best else best
            return
        fastest = max(map(median, self.measured.values()))
        if median(self.measured[fewer]) >= _AS_FAST * fastest:
            self._best = fewer
        self._chosen = self._best in (1, best)
        self._threads.limit = self._best if self._chosen else self._best // 2
