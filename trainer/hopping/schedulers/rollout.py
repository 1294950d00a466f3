"""Rollout: simulation of the remaining run in the estimated times, by a plan or by the greedy rule."""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Mapping

from .remaining_work import NONE, Plan, RemainingWork


def roll_out(work: RemainingWork, plan: Plan | None, horizon: int) -> tuple[float, Plan]:
    """Simulate a plan, and where it ends (or cannot be followed) greedy: the model with the most remaining work.

    Args:
        plan: a worker whose next model is busy waits for it, a model whose next worker is busy waits for that.
        horizon: sub-epochs to simulate; the lower bound stands for the rest.

    Returns:
        The makespan in seconds, and the plan as it was followed.
    """
    rollout = _Rollout(work, plan)
    return rollout.run(horizon), rollout.taken


class PlanQueues:
    """A plan as one queue of each worker and one of each model."""

    def __init__(self, plan: Plan):
        self.of_worker: dict[int, deque[int]] = defaultdict(deque)
        self.of_row: dict[int, deque[int]] = defaultdict(deque)
        for row, worker in plan:
            self.of_worker[worker].append(row)
            self.of_row[row].append(worker)

    def due(self, worker: int) -> int:
        """The row next on a worker, if the worker is also next for it; else NONE."""
        rows = self.of_worker[worker]
        return rows[0] if rows and self.of_row[rows[0]][0] == worker else NONE

    def pop(self, row: int, worker: int) -> None:
        assert (self.of_worker[worker].popleft(), self.of_row[row].popleft()) == (row, worker)


class _Rollout:
    def __init__(self, work: RemainingWork, plan: Plan | None):
        self.seconds = work.seconds
        self.first_held = work.first_held
        self.partitions = sum(work.held)
        self.rest = work.unscheduled.copy()
        self.free = set(work.free)
        self.events = list(work.events)
        heapq.heapify(self.events)
        busy = {worker for _, worker, _ in work.events}
        self.idle = [worker for worker, after in enumerate(work.free_in) if worker not in busy and after < math.inf]
        self.plan = PlanQueues(plan) if plan else None
        self.taken: Plan = []

    def run(self, horizon: int) -> float:
        now, events = 0.0, self.events
        self._assign(now)
        while len(self.taken) < horizon:
            if not events:
                if self.plan is None:
                    break
                self.plan = None
                self._assign(now)
                continue
            now, worker, row = heapq.heappop(events)
            if row != NONE:
                self.free.add(row)
            if worker != NONE:
                self.idle.append(worker)
            if not events or events[0][0] > now:
                self._assign(now)
        return self._makespan(now)

    def _assign(self, now: float) -> None:
        """Give the idle workers what they can begin."""
        if self.plan is not None:
            for worker in self.idle.copy():
                self._follow(worker, now)
        elif len(self.idle) == 1:
            row = self._longest(self.idle[0], {})
            if row != NONE:
                self._begin(row, self.idle[0], now)
        elif self.idle:
            for row in sorted(self.free, key=lambda row: (-self.rest.left[row], row)):
                worker = self._next_in_cycle(row)
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
        if row in self.free and self.rest.permits(row, worker):
            self.plan.pop(row, worker)
            self._begin(row, worker, now)

    def _longest(self, worker: int, planned: Mapping[int, object]) -> int:
        """The free model with the most remaining work that may train on a worker and is not in the plan."""
        # `Unscheduled.permits`, inlined: the innermost loop of every decision
        best, most, left, open_, bound = NONE, -math.inf, self.rest.left, self.rest.open, self.rest.bound
        for row in self.free:
            if left[row] > most and open_[row][worker] and bound[row] in (NONE, worker) and not planned.get(row):
                best, most = row, left[row]
        return best

    def _next_in_cycle(self, row: int) -> int:
        """The idle worker next in cyclic order on which a model may train."""
        permitted = [worker for worker in self.idle if self.rest.permits(row, worker)]
        turn = self.rest.turn[row]
        return min(permitted, key=lambda worker: (self.first_held[worker] - turn) % self.partitions, default=NONE)

    def _begin(self, row: int, worker: int, now: float) -> None:
        self.rest.begin(row, worker)
        self.free.discard(row)
        self.idle.remove(worker)
        self.taken.append((row, worker))
        heapq.heappush(self.events, (now + self.seconds[row][worker], worker, row))

    def _makespan(self, now: float) -> float:
        """Seconds in total, the lower bound standing for all that is not simulated."""
        left, load = self.rest.left, self.rest.load
        after = [when + load[worker] for when, worker, _ in self.events if worker != NONE]
        after += [when + left[row] for when, _, row in self.events if row != NONE]
        after += [now + load[worker] for worker in self.idle] + [now + left[row] for row in self.free]
        return max([now, *after])
