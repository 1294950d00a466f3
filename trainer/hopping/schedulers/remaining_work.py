"""Remaining work of a hopping run as arrays: the input of rollout and plan search."""

import math
from collections.abc import Iterable, Sequence
from copy import copy

from ..progress import HoppingProgress, ModelProgress
from .estimates import Estimates

MAX_REPEATS = 3
"""Maximum consecutive epochs of a model that end with one partition."""
NONE = -1
ROUNDING_S = 1e-9
"""Seconds within the rounding error of sums."""

Plan = list[tuple[int, int]]
"""Sub-epochs (model's row, worker) in the order in which they begin."""
Undo = tuple[list[int], int, int, int, int, int, tuple[int, ...], float, float]
"""State before a sub-epoch was begun."""
Event = tuple[float, int, int]
"""Seconds from now; the worker that becomes idle, and the row of the model that becomes free, or NONE."""


def repeated_last_partition(model: ModelProgress) -> int | None:
    """The partition that a model's last epochs all ended with: the present one must end with another."""
    last = model.last_partitions[-MAX_REPEATS:]
    return last[0] if len(last) == MAX_REPEATS and len(set(last)) == 1 else None


def _continues(model: ModelProgress) -> bool:
    return not model.withdrawn and not model.held and model.epoch < model.epochs


class RemainingWork:
    """Models in training and not held, each a row, and the workers, with estimated times.

    Args:
        free_in: seconds until each worker has finished its assignments; infinite: it is lost.
    """

    def __init__(self, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]):
        workers = range(len(free_in))
        self.progress = progress
        self.free_in = [max(0.0, seconds) for seconds in free_in]
        self.numbers = [number for number, model in progress.models.items() if _continues(model)]
        self.row = {number: row for row, number in enumerate(self.numbers)}
        self.seconds = [[estimates.seconds(number, worker) for worker in workers] for number in self.numbers]
        self.held = [progress.homes.count(worker) for worker in workers]
        """Number of partitions on each worker."""
        self.first_held = [progress.homes.index(worker) if worker in progress.homes else 0 for worker in workers]
        self.free = {row for row, number in enumerate(self.numbers) if not progress.models[number].busy}
        self.events = self._events()
        self.unscheduled = Unscheduled(self)

    def _events(self) -> list[Event]:
        """Times at which the busy workers and models become free."""
        homes, running = self.progress.homes, self.progress.running
        events: list[Event] = []
        done_in = list(self.free_in)
        for number, sub_epoch in reversed(running.items()):
            home, row = homes[sub_epoch.partition], self.row.get(number, NONE)
            if row != NONE:
                events.append((done_in[home], NONE, row))
                done_in[home] = max(0.0, done_in[home] - self.seconds[row][home])
        occupied = {homes[sub_epoch.partition] for sub_epoch in running.values()}
        events += [
            (after, worker, NONE) for worker, after in enumerate(self.free_in) if worker in occupied or after > 0
        ]
        return [event for event in events if event[0] < math.inf]

    def lower_bound(self) -> float:
        """Seconds that no schedule can beat: those of the longest model, or of the busiest worker."""
        rest = self.unscheduled
        ready = {row: after for after, _, row in self.events}
        models = [left + ready.get(row, 0.0) for row, left in enumerate(rest.left)]
        workers = [after + load for after, load in zip(self.free_in, rest.load, strict=True) if after < math.inf]
        return max(models + workers, default=0.0)


class Unscheduled:
    """Sub-epochs not begun yet and their estimated times; `begin` and `undo` walk the search tree in place."""

    def __init__(self, work: RemainingWork):
        self.work = work
        models = [work.progress.models[number] for number in work.numbers]
        homes = work.progress.homes
        self.open = [_less(work.held, (homes[partition] for partition in model.order)) for model in models]
        """Partitions on each worker that remain in the epoch of each row."""
        self.epochs_after = [model.epochs - model.epoch - 1 for model in models]
        self.in_epoch = [len(homes) - len(model.order) for model in models]
        self.turn = [number + model.epoch for number, model in zip(work.numbers, models, strict=True)]
        """Partition at which the epoch of each row would begin in cyclic order, modulo the number of partitions."""
        self.bound = [NONE if model.bound_to is None else homes[model.bound_to] for model in models]
        """The only permitted next worker of each row, or NONE."""
        self._last_workers = [
            tuple(homes[partition] for partition in model.last_partitions[-MAX_REPEATS:]) for model in models
        ]
        self._avoid = [NONE if (p := repeated_last_partition(model)) is None else homes[p] for model in models]
        """Worker on which the epoch of each row must not end, or NONE."""
        for row, model in enumerate(models):
            self._normalize(row, homes[model.order[-1]] if model.order else NONE)
        self.left, self.load = self._sums()
        """Seconds of each row, seconds on each worker."""

    def _sums(self) -> tuple[list[float], list[float]]:
        left, load = [], [0.0] * len(self.work.held)
        for row, seconds in enumerate(self.work.seconds):
            after = self.epochs_after[row]
            counts = [now + after * held for now, held in zip(self.open[row], self.work.held, strict=True)]
            each = [s * count for s, count in zip(seconds, counts, strict=True)]
            left.append(sum(each))
            load = [a + b for a, b in zip(load, each, strict=True)]
        return left, load

    def _normalize(self, row: int, worker: int) -> None:
        """Advance a row whose epoch has no partition left to the next, and bind it where two are left.

        Args:
            worker: of its last sub-epoch.
        """
        if self.in_epoch[row] == 0 and self.epochs_after[row]:
            self.epochs_after[row] -= 1
            self.open[row] = self.work.held
            self.in_epoch[row] = len(self.work.progress.homes)
            self.turn[row] += 1
            self._last_workers[row] = (*self._last_workers[row], worker)[-MAX_REPEATS:]
            repeated = len(self._last_workers[row]) == MAX_REPEATS == self._last_workers[row].count(worker)
            self._avoid[row] = worker if repeated and self.work.held[worker] == 1 else NONE
        avoid = self._avoid[row]
        if self.in_epoch[row] == 2 and self.bound[row] == NONE != avoid and self.open[row][avoid]:
            self.bound[row] = avoid

    def copy(self) -> "Unscheduled":
        """Independent copy; rows of `open` are shared, since none is changed in place."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, value.copy())
        return other

    def permits(self, row: int, worker: int) -> bool:
        """Whether a free model may train on a worker next."""
        return self.open[row][worker] > 0 and self.bound[row] in (NONE, worker)

    def count(self) -> int:
        """Number of sub-epochs."""
        return sum(self.in_epoch) + sum(self.epochs_after) * len(self.work.progress.homes)

    def begin(self, row: int, worker: int) -> Undo:
        """Begin a sub-epoch. Returns the argument of `undo`."""
        before = (
            self.open[row],
            self.epochs_after[row],
            self.in_epoch[row],
            self.turn[row],
            self.bound[row],
            self._avoid[row],
            self._last_workers[row],
            self.left[row],
            self.load[worker],
        )
        seconds = self.work.seconds[row][worker]
        self.open[row] = list(self.open[row])
        self.open[row][worker] -= 1
        self.in_epoch[row] -= 1
        self.bound[row] = NONE
        self.left[row] -= seconds
        self.load[worker] -= seconds
        self._normalize(row, worker)
        return before

    def undo(self, row: int, worker: int, before: Undo) -> None:
        """Undo `begin`."""
        self.open[row], self.epochs_after[row], self.in_epoch[row], self.turn[row], self.bound[row] = before[:5]
        self._avoid[row], self._last_workers[row], self.left[row], self.load[worker] = before[5:]


def _less(counts: list[int], workers: Iterable[int]) -> list[int]:
    rest = list(counts)
    for worker in workers:
        rest[worker] -= 1
    return rest
