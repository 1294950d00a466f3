"""Greedy scheduler: the model with the most remaining work first, by a rule that a simulation of the rest chooses."""

import heapq
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import NamedTuple

from ..progress import HoppingProgress, SubEpoch
from .estimates import Estimates

WEIGHT_SPREAD, MAX_PATIENCE = 0.6, 0.5
"""Relative spread of the random weights, and the longest random patience; half of the rules have none."""
TRIES, TRIES_AT_REST, KEPT = 4, 64, 4
"""Random rules tried in a decision, and before the first sub-epochs; the best ones that the next decision retries."""
MAX_SUB_EPOCHS, MIN_GAIN = 256, 1e-3
"""Horizon of a simulation, after it the lower bound stands for the rest; excess over the bound that ends a search."""


class Rule(NamedTuple):
    """Priority rule: a free worker takes the model with the most weighted remaining seconds, or waits for it."""

    weights: Mapping[int, float]
    patience: float
    """Longest wait for a busy model, as a share of its sub-epoch."""


class Greedy:
    """Greedy policy by weighted remaining seconds; at most three epochs of a model in a row end with one partition.

    The open shop is NP-hard, and a decision must cost less than a hop; the longest model first is cheap, but leaves
    workers idle when few models remain. So a few random rules simulate the rest of the run in the estimated times
    (random keys and delays: parameterized active schedules, Goncalves, Mendes and Resende 2005).
    """

    def __init__(self):
        self._random = random.Random(0)
        self._best: list[Rule] = []

    def next(
        self, worker: int, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]
    ) -> SubEpoch | None:
        """Next sub-epoch of a worker; None: it waits for a model. See `Scheduler.next`."""
        candidates = [each for each in progress.candidates(worker) if progress.varies_the_last(each)]
        if not candidates:
            return None
        rest = _Rest(progress, estimates, free_in)
        self._search(rest, TRIES if progress.running else TRIES_AT_REST)
        now = rest.worker_at[worker]
        models = {each.model for each in candidates} | {model for model, at in rest.model_at.items() if at > now}
        first = rest.first(worker, now, self._best[0], models)
        mine = [each for each in candidates if each.model == first]
        return min(mine, key=lambda each: _cyclic_order(each, progress), default=None)

    def _search(self, rest: "_Rest", tries: int) -> None:
        """Keep the best of the last decision's rules and of random ones, by the estimates of now."""
        rules, enough = self._best or [Rule(dict.fromkeys(rest.phases, 1.0), 0.0)], rest.bound() * (1 + MIN_GAIN)
        for _ in range(tries):
            weights = {model: 1 + WEIGHT_SPREAD * self._random.uniform(-1, 1) for model in rest.phases}
            rules.append(Rule(weights, max(0.0, MAX_PATIENCE * self._random.uniform(-1, 1))))
        found: list[tuple[float, int, Rule]] = []
        for number, rule in enumerate(rules):
            found.append((rest.makespan(rule), number, rule))
            if found[-1][0] <= enough:
                break
        self._best = [rule for _, _, rule in sorted(found)[:KEPT]]


class _Rest:
    """Rest of the run in estimated seconds: the models in training and not held, by their numbers, and the workers."""

    def __init__(self, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]):
        self.homes, self.seconds = progress.homes, estimates.seconds
        self.phases = {number: progress.phases(number) for number in progress.models}
        self.epochs = {number: m.epochs - m.epoch - 1 for number, m in progress.models.items() if m.continues}
        self.left, self.load = dict.fromkeys(self.epochs, 0.0), [0.0] * len(free_in)
        for number in self.left:
            self.open_epoch(number)
            for times, workers in (1, chain(*self.phases[number])), (self.epochs[number], self.homes):
                for worker in workers:
                    self.left[number] += times * self.seconds(number, worker)
                    self.load[worker] += times * self.seconds(number, worker)
        self.worker_at = [max(0.0, seconds) for seconds in free_in]
        self.model_at = dict.fromkeys(self.left, 0.0)
        ends = self.worker_at.copy()
        for model, sub_epoch in reversed(progress.running.items()):
            worker = progress.homes[sub_epoch.partition]
            if model in self.left:
                self.model_at[model] = ends[worker]
            ends[worker] = max(0.0, ends[worker] - self.seconds(model, worker))

    def first(self, worker: int, now: float, rule: Rule, models: Iterable[int]) -> int | None:
        """The model that a worker takes or, if it is busy now, waits for."""
        first, most = None, -1.0
        for model in models:  # the innermost loop of every decision
            weighted, phases = rule.weights[model] * self.left[model], self.phases[model]
            if weighted <= most or not phases or worker not in phases[-1]:
                continue
            if self.model_at[model] <= now + rule.patience * self.seconds(model, worker):
                first, most = model, weighted
        return first

    def makespan(self, rule: Rule) -> float:
        """Seconds of the rest by a rule, the workers that are free at the same time in their order."""
        rest = copy(self)
        rest.phases = {model: [list(phase) for phase in self.phases[model]] for model in self.left}
        rest.epochs, rest.left, rest.load = self.epochs.copy(), self.left.copy(), self.load.copy()
        rest.worker_at, rest.model_at = self.worker_at.copy(), self.model_at.copy()
        times = sorted({*rest.worker_at, *rest.model_at.values()} - {math.inf})
        now, begun = 0.0, 0
        while times and begun < MAX_SUB_EPOCHS:
            now = heapq.heappop(times)
            for worker in (worker for worker, at in enumerate(rest.worker_at) if at <= now):
                model = rest.first(worker, now, rule, rest.left)
                if model is not None and rest.model_at[model] <= now:
                    heapq.heappush(times, rest.begin(model, worker, now))
                    begun += 1
        return rest.bound(now)

    def bound(self, now: float = 0.0) -> float:
        """Lower bound of the rest: what a model or a worker still has to do, one sub-epoch after the other."""
        ends = zip((*self.worker_at, *self.model_at.values()), (*self.load, *self.left.values()), strict=True)
        return max((max(now, at) + left for at, left in ends if at < math.inf), default=now)

    def begin(self, model: int, worker: int, now: float) -> float:
        """Begin a sub-epoch. Returns when it ends."""
        seconds = self.seconds(model, worker)
        self.left[model] -= seconds
        self.load[worker] -= seconds
        self.worker_at[worker] = self.model_at[model] = now + seconds
        self.phases[model][-1].remove(worker)
        if not self.phases[model][-1]:
            self.phases[model].pop()
            self.open_epoch(model)
        return now + seconds

    def open_epoch(self, model: int) -> None:
        """Open a model's next epoch, if there is one and the present one has no partition left."""
        if self.epochs[model] and not self.phases[model]:
            self.epochs[model] -= 1
            self.phases[model].append([*self.homes])


def _cyclic_order(candidate: SubEpoch, progress: HoppingProgress) -> tuple[bool, int]:
    """Order of a model's partitions on one worker: first the one that must not be last, then cyclic."""
    turn = (candidate.partition - candidate.model - candidate.epoch) % len(progress.homes)
    return candidate.partition != progress.models[candidate.model].repeated_last_partition, turn
