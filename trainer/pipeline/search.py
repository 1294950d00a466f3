"""A plan that keeps a deadline, searched for depth first.

The plans tried are the active schedules of Giffler and Thompson (1960), carried over to the open shop: of all visits that could be next
take the one that would end first; one of those that share its worker or its model must begin before that end, or the
plan leaves a hole that the visit fits in. A worker may so wait for a model, where that serves.
"""

import math
from collections.abc import Iterator

from .outlook import NONE, NOTHING, Outlook, Plan, Remaining


def plan_until(outlook: Outlook, deadline: float, most_steps: int, most_visits: int) -> Plan | None:
    """The first visits of a plan by which all may be done in so many seconds; None: not found.

    Args:
        most_steps: so many visits are tried.
        most_visits: a plan of so many is long enough.
    """
    search = _Search(outlook, deadline, most_steps, most_visits)
    return search.taken if search.deepen() else None


class _Search:
    def __init__(self, outlook: Outlook, deadline: float, most_steps: int, most_visits: int):
        self.seconds = outlook.seconds
        self.deadline = deadline + NOTHING
        self.steps_left = most_steps
        self.most_visits = most_visits
        self.rest = Remaining(outlook)
        self.worker_at = list(outlook.free_in)
        self.model_at = [0.0] * len(outlook.numbers)
        for when, _, row in outlook.events:
            if row != NONE:
                self.model_at[row] = when
        self.taken: Plan = []
        self.known: dict[tuple, list[tuple[float, ...]]] = {}

    def deepen(self) -> bool:
        """Whether the visits taken can be continued until the end, or far enough."""
        if self.steps_left <= 0:
            return False
        self.steps_left -= 1
        if len(self.taken) >= self.most_visits:
            return True
        if self._worse_than_known():
            return False
        visits, ends_first = self._visits()
        if not visits:
            return max(self.rest.left, default=0.0) <= NOTHING
        return any(self._try(start, row, worker) for start, row, worker in self._in_conflict(visits, ends_first))

    def _worse_than_known(self) -> bool:
        """Whether the same visits were left before, with everybody free as early: that came to nothing."""
        key = (tuple(map(tuple, self.rest.to_see)), tuple(self.rest.epochs_after))
        now = (*self.model_at, *self.worker_at)
        known = self.known.setdefault(key, [])
        if any(all(a <= b + NOTHING for a, b in zip(then, now, strict=True)) for then in known):
            return True
        known.append(now)
        return False

    def _visits(self) -> tuple[list[tuple[float, int, int]], tuple[float, int, int]]:
        """When each visit that could be next would begin, its row and worker; and when the first of them would end."""
        visits, first = [], (math.inf, NONE, NONE)
        for row, to_see in enumerate(self.rest.to_see):
            if self.rest.left[row] <= NOTHING:
                continue
            ready, seconds, bound = self.model_at[row], self.seconds[row], self.rest.bound[row]
            for worker, start in enumerate(self.worker_at):
                if to_see[worker] and bound in (NONE, worker):
                    start = max(start, ready)
                    visits.append((start, row, worker))
                    if start + seconds[worker] < first[0]:
                        first = (start + seconds[worker], row, worker)
        return visits, first

    def _in_conflict(
        self, visits: list[tuple[float, int, int]], ends_first: tuple[float, int, int]
    ) -> list[tuple[float, int, int]]:
        """The visits of which one must be next, and that leave time for what comes after them; best first."""
        end, its_row, its_worker = ends_first
        left, load = self.rest.left, self.rest.load
        return sorted(
            (
                (start, row, worker)
                for start, row, worker in visits
                if start < end
                and (row == its_row or worker == its_worker)
                and start + left[row] <= self.deadline
                and start + load[worker] <= self.deadline
            ),
            key=lambda visit: visit[0] - left[visit[1]],
        )

    def _try(self, start: float, row: int, worker: int) -> bool:
        before, model_at, worker_at = self.rest.take(row, worker), self.model_at[row], self.worker_at[worker]
        self.model_at[row] = self.worker_at[worker] = start + self.seconds[row][worker]
        self.taken.append((row, worker))
        if self.deepen():
            return True
        self.taken.pop()
        self.model_at[row], self.worker_at[worker] = model_at, worker_at
        self.rest.put_back(row, worker, before)
        return False
