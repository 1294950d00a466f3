"""Discrete-event simulation of a hopping run, for the tests of the schedulers."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from leyden.trainer.hopping.progress import HoppingProgress, SubEpoch
from leyden.trainer.hopping.schedulers.estimates import Estimates
from leyden.trainer.hopping.schedulers.simple import Scheduler

Times = list[list[float]]
"""Seconds of a sub-epoch: of each model, on each worker."""


class SimulatedSubEpoch(NamedTuple):
    """Sub-epoch as it was executed."""

    sub_epoch: SubEpoch
    worker: int
    start: float
    end: float
    cancelled: bool


class Simulation:
    """Every idle worker is asked whenever a sub-epoch has ended. The scheduler knows only what was measured so far.

    Args:
        early: share of a sub-epoch before whose end the worker is asked for its next one (double buffering).
        mishap: "cancel" or "withdraw", or None: how a sub-epoch ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        times: Times,
        progress: HoppingProgress,
        estimates: Estimates | None = None,
        early: float = 0.0,
        mishap: Callable[[SubEpoch], str | None] = lambda sub_epoch: None,
    ):
        self.scheduler, self.times, self.progress, self.early, self.mishap = scheduler, times, progress, early, mishap
        self.estimates = estimates or Estimates()
        self.now = 0.0
        self.completed: list[SimulatedSubEpoch] = []
        self._begun: dict[SubEpoch, SimulatedSubEpoch] = {}
        self._events: list[tuple[float, int, bool, SubEpoch]] = []
        self._count = 0
        self._waiting = [0] * len(times[0])
        """Sub-epochs that each worker has begun or been assigned in advance."""

    def run(self) -> float:
        """Seconds until every sub-epoch is completed."""
        while True:
            while sum(self._ask(worker) for worker, count in enumerate(self._waiting) if not count):
                pass
            if not self._events:
                assert self.progress.finished
                return max((executed.end for executed in self.completed), default=0.0)
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                _, _, over, sub_epoch = heapq.heappop(self._events)
                worker = self.progress.homes[sub_epoch.partition]
                if over:
                    self._end(sub_epoch, worker)
                elif self._waiting[worker] == 1:
                    self._ask(worker)

    def _ask(self, worker: int) -> bool:
        sub_epoch = self.scheduler.next(worker, self.progress, self.estimates, self._free_in())
        if sub_epoch is None:
            return False
        assert self.progress.homes[sub_epoch.partition] == worker
        self.progress.begin(sub_epoch)
        start = max([self.now, *(executed.end for executed in self._begun.values() if executed.worker == worker)])
        seconds = self.times[sub_epoch.model][worker]
        self._begun[sub_epoch] = SimulatedSubEpoch(sub_epoch, worker, start, start + seconds, False)
        self._waiting[worker] += 1
        self._happens(start + seconds, True, sub_epoch)
        if self.early:
            self._happens(start + seconds * (1 - self.early), False, sub_epoch)
        return True

    def _happens(self, when: float, over: bool, sub_epoch: SubEpoch) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, over, sub_epoch))

    def _end(self, sub_epoch: SubEpoch, worker: int) -> None:
        executed = self._begun.pop(sub_epoch)
        self._waiting[worker] -= 1
        self.estimates.record(sub_epoch.model, worker, executed.end - executed.start)
        mishap = self.mishap(sub_epoch)
        self.completed.append(executed._replace(cancelled=mishap is not None))
        if mishap is None:
            self.progress.end(sub_epoch)
        else:
            self.progress.cancel(sub_epoch)
        if mishap == "withdraw":
            self.progress.withdraw(sub_epoch.model)

    def _free_in(self) -> list[float]:
        """Seconds until each worker is done with what it has begun, by the estimates."""
        seconds = [0.0] * len(self._waiting)
        for executed in self._begun.values():
            whole = self.estimates.seconds(executed.sub_epoch.model, executed.worker)
            seconds[executed.worker] += max(0.0, whole - max(0.0, self.now - executed.start))
        return seconds


def first_in_first_out(times: Times, epochs: int, rotated: bool = False) -> float:
    """Seconds that a systolic pipeline takes whose workers serve the models strictly in the order of their arrival.

    Worker p holds partition p. Every model trains on 0, 1, ..., P - 1 in each epoch, and joins the (unbounded) queue of
    its next worker the moment its sub-epoch has ended; at the start all queue at worker 0, by number. No worker is idle
    while its queue holds a model. `rotated` is the fairer reading: model i's epoch e begins at (i + e) mod P.
    """
    workers = len(times[0])
    queues = [deque[int]() for _ in range(workers)]
    idle, done, now, ends = set(range(workers)), [0] * len(times), 0.0, list[tuple[float, int, int]]()

    def join(model: int) -> None:
        epoch, position = divmod(done[model], workers)
        if epoch < epochs:
            queues[(position + (model + epoch if rotated else 0)) % workers].append(model)

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


def unequal(rng: random.Random, models: int, workers: int) -> Times:
    """Models of 1 to 4, workers slower by 1 to 3, and a tenth that neither explains."""
    sizes = [rng.uniform(1, 4) for _ in range(models)]
    slownesses = [rng.uniform(1, 3) for _ in range(workers)]
    return [[size * slow * rng.uniform(0.9, 1.1) for slow in slownesses] for size in sizes]


def measured(times: Times) -> Estimates:
    """Estimates that know every time."""
    estimates = Estimates()
    for model, row in enumerate(times):
        for worker, seconds in enumerate(row):
            estimates.record(model, worker, seconds)
    return estimates


def plain_progress(models: int, workers: int, epochs: int) -> HoppingProgress:
    """Worker p holds partition p."""
    return HoppingProgress(dict.fromkeys(range(models), epochs), range(workers))


def makespan(scheduler: Scheduler, times: Times, epochs: int, estimates: Estimates | None = None) -> float:
    """Seconds that a scheduler takes, by default one that starts knowing nothing."""
    return Simulation(scheduler, times, plain_progress(len(times), len(times[0]), epochs), estimates).run()


def no_overlap(executed: Sequence[SimulatedSubEpoch]) -> bool:
    ordered = sorted(executed, key=lambda each: each.start)
    return all(a.end <= b.start for a, b in pairwise(ordered))
