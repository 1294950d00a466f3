"""How a pipeline would go on by a plan or by a plain rule, in the estimated times."""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Mapping

from .outlook import NONE, Outlook, Plan


def go_on(outlook: Outlook, plan: Plan | None, most_visits: int) -> tuple[float, Plan]:
    """Follow a plan, and where it ends (or cannot be followed) the rule: the model with the most left to do.

    Args:
        plan: a worker whose next model is not free waits for it, a model whose next worker is not idle waits for that.
        most_visits: after so many the rest counts as what it takes at least.

    Returns:
        seconds until all is done, and the plan that was followed.
    """
    ahead = _Ahead(outlook, plan)
    return ahead.run(most_visits), ahead.taken


class Queues:
    """A plan as each worker and each model sees it."""

    def __init__(self, plan: Plan):
        self.of_worker: dict[int, deque[int]] = defaultdict(deque)
        self.of_row: dict[int, deque[int]] = defaultdict(deque)
        for row, worker in plan:
            self.of_worker[worker].append(row)
            self.of_row[row].append(worker)

    def due(self, worker: int) -> int:
        """The row that is next at a worker, where the worker is next for it; else NONE."""
        rows = self.of_worker[worker]
        return rows[0] if rows and self.of_row[rows[0]][0] == worker else NONE

    def take(self, row: int, worker: int) -> None:
        assert (self.of_worker[worker].popleft(), self.of_row[row].popleft()) == (row, worker)


class _Ahead:
    def __init__(self, outlook: Outlook, plan: Plan | None):
        self.seconds = outlook.seconds
        self.first_held = outlook.first_held
        self.partitions = sum(outlook.held)
        self.rest = outlook.rest.copy()
        self.free = set(outlook.free)
        self.events = list(outlook.events)
        heapq.heapify(self.events)
        busy = {worker for _, worker, _ in outlook.events}
        self.idle = [at for at, after in enumerate(outlook.free_in) if at not in busy and after < math.inf]
        self.plan = Queues(plan) if plan else None
        self.taken: Plan = []

    def run(self, most_visits: int) -> float:
        now, events = 0.0, self.events
        self._fill(now)
        while len(self.taken) < most_visits:
            if not events:
                if self.plan is None:
                    break
                self.plan = None
                self._fill(now)
                continue
            now, worker, row = heapq.heappop(events)
            if row != NONE:
                self.free.add(row)
            if worker != NONE:
                self.idle.append(worker)
            if not events or events[0][0] > now:
                self._fill(now)
        return self._least(now)

    def _fill(self, now: float) -> None:
        """The idle workers take what they can."""
        if self.plan is not None:
            for worker in self.idle.copy():
                self._follow(worker, now)
        elif len(self.idle) == 1:
            row = self._longest(self.idle[0], {})
            if row != NONE:
                self._begin(row, self.idle[0], now)
        elif self.idle:
            for row in sorted(self.free, key=lambda row: (-self.rest.left[row], row)):
                worker = self._nearest(row)
                if worker != NONE:
                    self._begin(row, worker, now)

    def _follow(self, worker: int, now: float) -> None:
        assert self.plan is not None
        if not self.plan.of_worker[worker]:
            row = self._longest(worker, self.plan.of_row)
            if row != NONE:
                self._begin(row, worker, now)
            return
        row = self.plan.due(worker)
        if row in self.free and self.rest.may(row, worker):
            self.plan.take(row, worker)
            self._begin(row, worker, now)

    def _longest(self, worker: int, planned: Mapping[int, object]) -> int:
        """Of the free models that may visit a worker and have no plan the one with the most left to do."""
        best, most, left, to_see, bound = NONE, -math.inf, self.rest.left, self.rest.to_see, self.rest.bound
        for row in self.free:
            if left[row] > most and to_see[row][worker] and bound[row] in (NONE, worker) and not planned.get(row):
                best, most = row, left[row]
        return best

    def _nearest(self, row: int) -> int:
        """Of the idle workers that a model may visit the one whose turn comes first, going round."""
        may = [worker for worker in self.idle if self.rest.may(row, worker)]
        turn = self.rest.turn[row]
        return min(may, key=lambda worker: (self.first_held[worker] - turn) % self.partitions, default=NONE)

    def _begin(self, row: int, worker: int, now: float) -> None:
        self.rest.take(row, worker)
        self.free.discard(row)
        self.idle.remove(worker)
        self.taken.append((row, worker))
        heapq.heappush(self.events, (now + self.seconds[row][worker], worker, row))

    def _least(self, now: float) -> float:
        """Seconds in all, where what is left after now takes as long as its longest model or busiest worker."""
        left, load = self.rest.left, self.rest.load
        after = [when + load[worker] for when, worker, _ in self.events if worker != NONE]
        after += [when + left[row] for when, _, row in self.events if row != NONE]
        after += [now + load[worker] for worker in self.idle] + [now + left[row] for row in self.free]
        return max([now, *after])
