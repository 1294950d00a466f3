"""What a pipeline has left to do, in arrays: the ground that a decision is searched on."""

import math
from collections.abc import Iterable, Sequence
from copy import copy

from .board import Board, Progress
from .estimates import Estimates

REPEATS = 3
"""So many epochs of a model in a row may end with the same partition, no more."""
NONE = -1
NOTHING = 1e-9
"""Seconds that are but the rounding of sums."""

Plan = list[tuple[int, int]]
"""Visits (the model's row, the worker) in the order in which they begin."""
Before = tuple[list[int], int, int, int, int, int, tuple[int, ...], float, float]
"""How it was before a visit was taken."""
Event = tuple[float, int, int]
"""Seconds from now; the worker that is idle then, and the row of the model that is free then, or NONE."""


def repeated_ending(at: Progress) -> int | None:
    """The partition that a model's last epochs all ended with: the present one must end with another."""
    last = at.endings[-REPEATS:]
    return last[0] if len(last) == REPEATS and len(set(last)) == 1 else None


def _goes_on(at: Progress) -> bool:
    return not at.withdrawn and not at.held and at.epoch < at.epochs


class Outlook:
    """The models that are still trained and not held, each a row, and the workers.

    Args:
        free_in: seconds until each worker is done with all that it has begun; infinite: it does not come back.
    """

    def __init__(self, board: Board, estimates: Estimates, free_in: Sequence[float]):
        workers = range(len(free_in))
        self.board = board
        self.free_in = [max(0.0, seconds) for seconds in free_in]
        self.numbers = [number for number, at in board.models.items() if _goes_on(at)]
        self.row = {number: row for row, number in enumerate(self.numbers)}
        self.seconds = [[estimates.seconds(number, worker) for worker in workers] for number in self.numbers]
        self.held = [board.homes.count(worker) for worker in workers]
        """Partitions at each worker."""
        self.first_held = [board.homes.index(worker) if worker in board.homes else 0 for worker in workers]
        self.free = {row for row, number in enumerate(self.numbers) if not board.models[number].busy}
        self.events = self._events()
        self.rest = Remaining(self)

    def _events(self) -> list[Event]:
        """When the workers and the models that are busy now will be free."""
        homes, under_way = self.board.homes, self.board.under_way
        events: list[Event] = []
        done_in = list(self.free_in)
        for number, visit in reversed(under_way.items()):
            home, row = homes[visit.partition], self.row.get(number, NONE)
            if row != NONE:
                events.append((done_in[home], NONE, row))
                done_in[home] = max(0.0, done_in[home] - self.seconds[row][home])
        occupied = {homes[visit.partition] for visit in under_way.values()}
        events += [
            (after, worker, NONE) for worker, after in enumerate(self.free_in) if worker in occupied or after > 0
        ]
        return [event for event in events if event[0] < math.inf]

    def least(self) -> float:
        """Seconds that all of it takes at least: the longest model, or the busiest worker."""
        rest = self.rest
        ready = {row: after for after, _, row in self.events}
        models = [left + ready.get(row, 0.0) for row, left in enumerate(rest.left)]
        workers = [after + load for after, load in zip(self.free_in, rest.load, strict=True) if after < math.inf]
        return max(models + workers, default=0.0)


class Remaining:
    """The visits that have not begun, and what they take; `take` begins one."""

    def __init__(self, outlook: Outlook):
        self.outlook = outlook
        progress = [outlook.board.models[number] for number in outlook.numbers]
        homes = outlook.board.homes
        self.to_see = [_less(outlook.held, (homes[partition] for partition in at.order)) for at in progress]
        """Of each row at each worker: partitions that it has yet to visit in its epoch."""
        self.epochs_after = [at.epochs - at.epoch - 1 for at in progress]
        self.in_epoch = [len(homes) - len(at.order) for at in progress]
        self.turn = [number + at.epoch for number, at in zip(outlook.numbers, progress, strict=True)]
        """Partition at which the epoch of each row would begin, modulo their number."""
        self.bound = [NONE if at.bound_to is None else homes[at.bound_to] for at in progress]
        """The only worker that may have a row next."""
        self._endings = [tuple(homes[partition] for partition in at.endings[-REPEATS:]) for at in progress]
        self._avoid = [NONE if (p := repeated_ending(at)) is None else homes[p] for at in progress]
        """Worker at which the epoch of a row must not end."""
        for row in range(len(progress)):
            self._settle(row, homes[progress[row].order[-1]] if progress[row].order else NONE)
        self.left, self.load = self._sums()
        """Seconds of each row, seconds at each worker."""

    def _sums(self) -> tuple[list[float], list[float]]:
        left, load = [], [0.0] * len(self.outlook.held)
        for row, seconds in enumerate(self.outlook.seconds):
            after = self.epochs_after[row]
            visits = [now + after * held for now, held in zip(self.to_see[row], self.outlook.held, strict=True)]
            each = [s * count for s, count in zip(seconds, visits, strict=True)]
            left.append(sum(each))
            load = [a + b for a, b in zip(load, each, strict=True)]
        return left, load

    def _settle(self, row: int, worker: int) -> None:
        """A row whose epoch is all begun stands before its next; one whose last visit but one is due may be bound.

        Args:
            worker: of its last visit.
        """
        if self.in_epoch[row] == 0 and self.epochs_after[row]:
            self.epochs_after[row] -= 1
            self.to_see[row] = self.outlook.held
            self.in_epoch[row] = len(self.outlook.board.homes)
            self.turn[row] += 1
            self._endings[row] = (*self._endings[row], worker)[-REPEATS:]
            again = len(self._endings[row]) == REPEATS == self._endings[row].count(worker)
            self._avoid[row] = worker if again and self.outlook.held[worker] == 1 else NONE
        avoid = self._avoid[row]
        if self.in_epoch[row] == 2 and self.bound[row] == NONE != avoid and self.to_see[row][avoid]:
            self.bound[row] = avoid

    def copy(self) -> "Remaining":
        """Another that stands alike; rows of `to_see` are never changed in place."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, value.copy())
        return other

    def may(self, row: int, worker: int) -> bool:
        """Whether a model that is free may visit a worker."""
        return self.to_see[row][worker] > 0 and self.bound[row] in (NONE, worker)

    def visits(self) -> int:
        """Their number."""
        return sum(self.in_epoch) + sum(self.epochs_after) * len(self.outlook.board.homes)

    def take(self, row: int, worker: int) -> Before:
        """Begin a visit. Returns what `put_back` wants."""
        before = (
            self.to_see[row],
            self.epochs_after[row],
            self.in_epoch[row],
            self.turn[row],
            self.bound[row],
            self._avoid[row],
            self._endings[row],
            self.left[row],
            self.load[worker],
        )
        seconds = self.outlook.seconds[row][worker]
        self.to_see[row] = list(self.to_see[row])
        self.to_see[row][worker] -= 1
        self.in_epoch[row] -= 1
        self.bound[row] = NONE
        self.left[row] -= seconds
        self.load[worker] -= seconds
        self._settle(row, worker)
        return before

    def put_back(self, row: int, worker: int, before: Before) -> None:
        """As if the visit had not been taken."""
        self.to_see[row], self.epochs_after[row], self.in_epoch[row], self.turn[row], self.bound[row] = before[:5]
        self._avoid[row], self._endings[row], self.left[row], self.load[worker] = before[5:]


def _less(counts: list[int], workers: Iterable[int]) -> list[int]:
    rest = list(counts)
    for worker in workers:
        rest[worker] -= 1
    return rest
