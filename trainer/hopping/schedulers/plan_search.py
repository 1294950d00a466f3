"""Depth-first search for a plan that meets a deadline.

The plans tried are the active schedules of Giffler and Thompson (1960), generalized to the open shop: of all sub-epochs
that could be next take the one that would end first; one of those that share its worker or its model must begin before
that end, or the plan leaves a gap that the sub-epoch fits in. A worker may thus wait for a model where that pays off.
"""

import math
from collections.abc import Iterator, Sequence
from operator import le

from .remaining_work import NONE, ROUNDING_S, Plan, RemainingWork, Undo


def find_plan(
    work: RemainingWork, deadline: float, weights: Sequence[float], max_steps: int, horizon: int
) -> Plan | None:
    """First sub-epochs of a plan that may finish by the deadline; None: not found.

    Args:
        deadline: seconds from now.
        weights: of each row: how much its remaining seconds count for its priority. Others give other plans.
        max_steps: sub-epochs to try.
        horizon: length at which a plan is long enough.
    """
    search = _Search(work, deadline, weights)
    return search.taken if search.run(horizon, max_steps) else None


class _Search:
    def __init__(self, work: RemainingWork, deadline: float, weights: Sequence[float]):
        self.seconds = work.seconds
        self.deadline = deadline + ROUNDING_S
        self.weights = weights
        self.rest = work.unscheduled.copy()
        self.worker_at = list(work.free_in)
        self.model_at = [0.0] * len(work.numbers)
        for when, _, row in work.events:
            if row != NONE:
                self.model_at[row] = when
        self.taken: Plan = []
        self.undo_stack: list[tuple[float, float, Undo]] = []
        """Arguments of `_undo`, one for each sub-epoch taken."""
        self.signature = 0
        """Multiset of the sub-epochs taken: their number for each row and worker, 16 bits each."""
        self.known: dict[int, list[list[float]]] = {}

    def run(self, horizon: int, max_steps: int) -> bool:
        """Whether a plan was found that is complete or long enough; `taken` is that plan."""
        enough = min(horizon, self.rest.count())
        untried = [self._next()]
        while len(self.taken) < enough:
            sub_epoch = next(untried[-1], None)
            if sub_epoch is not None:
                if max_steps <= 0:
                    return False
                max_steps -= 1
                self._begin(*sub_epoch)
                untried.append(self._next())
            elif not self.taken:
                return False
            else:
                untried.pop()
                self._undo()
        return True

    def _next(self) -> Iterator[tuple[float, int, int]]:
        """Sub-epochs (start, row, worker) worth trying next, best first."""
        if self._worse_than_known():
            return iter(())
        end, row, worker = self._ends_first()
        return iter(self._in_conflict(end, row, worker) if row != NONE else ())

    def _worse_than_known(self) -> bool:
        """Whether the same sub-epochs were taken before, all models and workers free no later, without success."""
        now = self.model_at + self.worker_at
        known = self.known.setdefault(self.signature, [])
        if any(all(map(le, then, now)) for then in known):
            return True
        known.append(now)
        return False

    def _ends_first(self) -> tuple[float, int, int]:
        """The sub-epoch that would end first, of those that could be next: its end, row and worker."""
        end, its_row, its_worker = math.inf, NONE, NONE
        in_epoch, bounds, worker_at = self.rest.in_epoch, self.rest.bound, self.worker_at
        for row, open_ in enumerate(self.rest.open):
            if not in_epoch[row] or self.model_at[row] >= end:
                continue
            ready, seconds, bound = self.model_at[row], self.seconds[row], bounds[row]
            for worker, count in enumerate(open_):
                if count and bound in (NONE, worker):
                    start = worker_at[worker]
                    ends = (start if start > ready else ready) + seconds[worker]
                    if ends < end:
                        end, its_row, its_worker = ends, row, worker
        return end, its_row, its_worker

    def _in_conflict(self, end: float, its_row: int, its_worker: int) -> list[tuple[float, int, int]]:
        """Sub-epochs (start, row, worker) of which one must be next and that leave time for the rest, best first."""
        left, load, permits = self.rest.left, self.rest.load, self.rest.permits
        others = [(row, its_worker) for row in range(len(left)) if row != its_row]
        pairs = [*others, *((its_row, worker) for worker in range(len(load)))]
        starts = ((max(self.model_at[row], self.worker_at[worker]), row, worker) for row, worker in pairs)
        sub_epochs = [
            (start - left[row] * self.weights[row], start, row, worker)
            for start, row, worker in starts
            if start < end and permits(row, worker) and start + max(left[row], load[worker]) <= self.deadline
        ]
        return [each[1:] for each in sorted(sub_epochs)]

    def _begin(self, start: float, row: int, worker: int) -> None:
        self.undo_stack.append((self.model_at[row], self.worker_at[worker], self.rest.begin(row, worker)))
        self.model_at[row] = self.worker_at[worker] = start + self.seconds[row][worker]
        self.signature += self._one(row, worker)
        self.taken.append((row, worker))

    def _undo(self) -> None:
        row, worker = self.taken.pop()
        self.model_at[row], self.worker_at[worker], before = self.undo_stack.pop()
        self.signature -= self._one(row, worker)
        self.rest.undo(row, worker, before)

    def _one(self, row: int, worker: int) -> int:
        return 1 << 16 * (row * len(self.worker_at) + worker)
