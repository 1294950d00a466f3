"""A pipeline in virtual time: what the tests of the schedulers run on."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from leyden.trainer.pipeline.board import Board, Visit
from leyden.trainer.pipeline.estimates import Estimates
from leyden.trainer.pipeline.schedulers import Scheduler

Times = list[list[float]]
"""Seconds of a visit: of each model, at each worker."""


class Made(NamedTuple):
    """A visit as it was made."""

    visit: Visit
    worker: int
    start: float
    end: float
    given_up: bool


class Simulation:
    """Every idle worker is asked whenever a visit has ended. The scheduler knows what was measured so far, no more.

    Args:
        early: share of a visit before whose end the worker is asked for its next one (double buffering); 0: at its end.
        mishap: "give up" or "withdraw", or None: how a visit ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        times: Times,
        board: Board,
        estimates: Estimates | None = None,
        early: float = 0.0,
        mishap: Callable[[Visit], str | None] = lambda visit: None,
    ):
        self.scheduler, self.times, self.board, self.early, self.mishap = scheduler, times, board, early, mishap
        self.estimates = estimates or Estimates()
        self.now = 0.0
        self.made: list[Made] = []
        self._begun: dict[Visit, Made] = {}
        self._events: list[tuple[float, int, bool, Visit]] = []
        self._count = 0
        self._waiting = [0] * len(times[0])
        """Visits that each worker has begun or taken in advance."""

    def run(self) -> float:
        """Seconds until every visit was made."""
        while True:
            while sum(self._ask(worker) for worker, count in enumerate(self._waiting) if not count):
                pass
            if not self._events:
                assert self.board.over
                return max((made.end for made in self.made), default=0.0)
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                _, _, over, visit = heapq.heappop(self._events)
                worker = self.board.homes[visit.partition]
                if over:
                    self._end(visit, worker)
                elif self._waiting[worker] == 1:
                    self._ask(worker)

    def _ask(self, worker: int) -> bool:
        visit = self.scheduler.next(worker, self.board, self.estimates, self._free_in())
        if visit is None:
            return False
        assert self.board.homes[visit.partition] == worker
        self.board.begin(visit)
        start = max([self.now, *(made.end for made in self._begun.values() if made.worker == worker)])
        seconds = self.times[visit.model][worker]
        self._begun[visit] = Made(visit, worker, start, start + seconds, False)
        self._waiting[worker] += 1
        self._happens(start + seconds, True, visit)
        if self.early:
            self._happens(start + seconds * (1 - self.early), False, visit)
        return True

    def _happens(self, when: float, over: bool, visit: Visit) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, over, visit))

    def _end(self, visit: Visit, worker: int) -> None:
        made = self._begun.pop(visit)
        self._waiting[worker] -= 1
        self.estimates.note(visit.model, worker, made.end - made.start)
        mishap = self.mishap(visit)
        self.made.append(made._replace(given_up=mishap is not None))
        if mishap is None:
            self.board.end(visit)
        else:
            self.board.give_up(visit)
        if mishap == "withdraw":
            self.board.withdraw(visit.model)

    def _free_in(self) -> list[float]:
        """Seconds until each worker is done with what it has begun, by the estimates."""
        seconds = [0.0] * len(self._waiting)
        for made in self._begun.values():
            whole = self.estimates.seconds(made.visit.model, made.worker)
            seconds[made.worker] += max(0.0, whole - max(0.0, self.now - made.start))
        return seconds


def first_in_first_out(times: Times, epochs: int, rotated: bool = False) -> float:
    """Seconds that a systolic pipeline takes whose workers serve the models strictly in the order of their arrival.

    Worker p holds partition p. Every model visits 0, 1, ..., P - 1 in each epoch, and joins the (unbounded) queue of
    its next worker the moment its visit has ended; at the start all queue at worker 0, by number. No worker is idle
    while its queue holds a model. `rotated` is the fairer reading: model i's epoch e begins at (i + e) mod P.
    """
    workers = len(times[0])
    queues = [deque[int]() for _ in range(workers)]
    idle, done, now, ends = set(range(workers)), [0] * len(times), 0.0, list[tuple[float, int, int]]()

    def join(model: int) -> None:
        epoch, visits = divmod(done[model], workers)
        if epoch < epochs:
            queues[(visits + (model + epoch if rotated else 0)) % workers].append(model)

    for model in range(len(times)):
        join(model)
    while True:
        for worker in sorted(idle):
            if queues[worker]:
                model = queues[worker].popleft()
                idle.remove(worker)
                heapq.heappush(ends, (now + times[model][worker], worker, model))
        if not ends:
            return now
        now, worker, model = heapq.heappop(ends)
        idle.add(worker)
        done[model] += 1
        join(model)


def least(times: Times, epochs: int) -> float:
    """Seconds that no schedule can beat: the longest model's, or the busiest worker's."""
    return epochs * max([sum(row) for row in times] + [sum(column) for column in zip(*times, strict=True)])


def unequal(chance: random.Random, models: int, workers: int) -> Times:
    """Models of 1 to 4, workers slower by 1 to 3, and a tenth that neither explains."""
    sizes = [chance.uniform(1, 4) for _ in range(models)]
    slownesses = [chance.uniform(1, 3) for _ in range(workers)]
    return [[size * slow * chance.uniform(0.9, 1.1) for slow in slownesses] for size in sizes]


def measured(times: Times) -> Estimates:
    """Estimates that know every time."""
    estimates = Estimates()
    for model, row in enumerate(times):
        for worker, seconds in enumerate(row):
            estimates.note(model, worker, seconds)
    return estimates


def plain_board(models: int, workers: int, epochs: int) -> Board:
    """Worker p holds partition p."""
    return Board(dict.fromkeys(range(models), epochs), range(workers))


def makespan(scheduler: Scheduler, times: Times, epochs: int, estimates: Estimates | None = None) -> float:
    """Seconds that a scheduler takes, by default one that starts knowing nothing."""
    return Simulation(scheduler, times, plain_board(len(times), len(times[0]), epochs), estimates).run()


def no_overlap(made: Sequence[Made]) -> bool:
    ordered = sorted(made, key=lambda each: each.start)
    return all(a.end <= b.start for a, b in pairwise(ordered))
