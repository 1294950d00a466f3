"""A plan that keeps a deadline, searched for depth first.

The plans tried are the active schedules of Giffler and Thompson (1960), carried over to the open shop: of all visits
that could be next take the one that would end first; one of those that share its worker or its model must begin before
that end, or the plan leaves a hole that the visit fits in. A worker may so wait for a model, where that serves.
"""

import math
from collections.abc import Iterator, Sequence
from operator import le

from .outlook import NONE, NOTHING, Before, Outlook, Plan


def plan_until(
    outlook: Outlook, deadline: float, weights: Sequence[float], most_steps: int, most_visits: int
) -> Plan | None:
    """The first visits of a plan by which all may be done in so many seconds; None: not found.

    Args:
        weights: of each row: how soon its turn comes, for the seconds that it has left. Others give other plans.
        most_steps: so many visits are tried.
        most_visits: a plan of so many is long enough.
    """
    search = _Search(outlook, deadline, weights)
    return search.taken if search.reaches(most_visits, most_steps) else None


class _Search:
    def __init__(self, outlook: Outlook, deadline: float, weights: Sequence[float]):
        self.seconds = outlook.seconds
        self.deadline = deadline + NOTHING
        self.weights = weights
        self.rest = outlook.rest.copy()
        self.worker_at = list(outlook.free_in)
        self.model_at = [0.0] * len(outlook.numbers)
        for when, _, row in outlook.events:
            if row != NONE:
                self.model_at[row] = when
        self.taken: Plan = []
        self.before: list[tuple[float, float, Before]] = []
        """What `_put_back` wants, for each visit taken."""
        self.which = 0
        """Which visits have been taken, in any order: how many of each row at each worker, 16 bits each."""
        self.known: dict[int, list[list[float]]] = {}

    def reaches(self, most_visits: int, most_steps: int) -> bool:
        """Whether a way was found to the end, or far enough; `taken` is that way."""
        enough = min(most_visits, self.rest.visits())
        untried = [self._next()]
        while len(self.taken) < enough:
            visit = next(untried[-1], None)
            if visit is not None:
                if most_steps <= 0:
                    return False
                most_steps -= 1
                self._take(*visit)
                untried.append(self._next())
            elif not self.taken:
                return False
            else:
                untried.pop()
                self._put_back()
        return True

    def _next(self) -> Iterator[tuple[float, int, int]]:
        """The visits (start, row, worker) that are worth a try next, best first."""
        if self._worse_than_known():
            return iter(())
        end, row, worker = self._ends_first()
        return iter(self._in_conflict(end, row, worker) if row != NONE else ())

    def _worse_than_known(self) -> bool:
        """Whether the same visits were taken before, with everybody free as early: that came to nothing."""
        now = self.model_at + self.worker_at
        known = self.known.setdefault(self.which, [])
        if any(all(map(le, then, now)) for then in known):
            return True
        known.append(now)
        return False

    def _ends_first(self) -> tuple[float, int, int]:
        """Of the visits that could be next the one that would end first: its end, row and worker."""
        end, its_row, its_worker = math.inf, NONE, NONE
        in_epoch, bounds, worker_at = self.rest.in_epoch, self.rest.bound, self.worker_at
        for row, to_see in enumerate(self.rest.to_see):
            if not in_epoch[row] or self.model_at[row] >= end:
                continue
            ready, seconds, bound = self.model_at[row], self.seconds[row], bounds[row]
            for worker, count in enumerate(to_see):
                if count and bound in (NONE, worker):
                    start = worker_at[worker]
                    ends = (start if start > ready else ready) + seconds[worker]
                    if ends < end:
                        end, its_row, its_worker = ends, row, worker
        return end, its_row, its_worker

    def _in_conflict(self, end: float, its_row: int, its_worker: int) -> list[tuple[float, int, int]]:
        """The visits (start, row, worker) of which one must be next and leaves time for all else; best first."""
        left, load, may = self.rest.left, self.rest.load, self.rest.may
        others = [(row, its_worker) for row in range(len(left)) if row != its_row]
        pairs = [*others, *((its_row, worker) for worker in range(len(load)))]
        starts = ((max(self.model_at[row], self.worker_at[worker]), row, worker) for row, worker in pairs)
        visits = [
            (start - left[row] * self.weights[row], start, row, worker)
            for start, row, worker in starts
            if start < end and may(row, worker) and start + max(left[row], load[worker]) <= self.deadline
        ]
        return [visit[1:] for visit in sorted(visits)]

    def _take(self, start: float, row: int, worker: int) -> None:
        self.before.append((self.model_at[row], self.worker_at[worker], self.rest.take(row, worker)))
        self.model_at[row] = self.worker_at[worker] = start + self.seconds[row][worker]
        self.which += self._one(row, worker)
        self.taken.append((row, worker))

    def _put_back(self) -> None:
        row, worker = self.taken.pop()
        self.model_at[row], self.worker_at[worker], before = self.before.pop()
        self.which -= self._one(row, worker)
        self.rest.put_back(row, worker, before)

    def _one(self, row: int, worker: int) -> int:
        return 1 << 16 * (row * len(self.worker_at) + worker)
