"""Greedy scheduler with rollout: the longest model first, and a searched plan where that wastes time."""

import random
from collections.abc import Sequence

from ..progress import HoppingProgress, SubEpoch
from .estimates import Estimates
from .plan_search import find_plan
from .remaining_work import Plan, RemainingWork, repeated_last_partition
from .rollout import PlanQueues, roll_out

MIN_GAIN = 1e-3
"""Share of the makespan that a new plan must save: below the noise of the estimates a change is not worth it."""
DEADLINE_SHARES = (0.1, 0.7)
"""Deadlines of successive searches, as shares of a plan's excess over the lower bound: ambitious and modest in turn."""
WEIGHT_SPREAD = 0.3
"""Relative spread of the models' random weights, which make each search explore another part of the tree."""
MAX_SUB_EPOCHS = 256
"""Horizon of a plan; beyond it the lower bound stands for the rest."""
SEARCH_EFFORT = 6000
"""Of one search, one to two milliseconds; a step costs the number of models times workers, and 16 more."""
SEARCHES_AT_REST = 8
"""Searches while no sub-epoch is running and the decision delays nothing; else one."""


class Greedy:
    """Greedy policy improved by rollout: an idle worker takes the model with the most remaining work.

    The open shop is NP-hard, and a decision must cost less than a hop; greedy is cheap, but leaves workers idle where
    few models remain. So each decision is rolled out in the estimated times, and only where that wastes time a better
    plan is searched for, and followed as long as new measurements confirm it; by a plan a worker may wait for a model.
    Where several workers are idle, a model goes to the one with the next partition in cyclic order from model + epoch;
    at most three epochs of a model in a row end with the same partition.
    """

    def __init__(self):
        self._searches = 0
        self._plan: list[tuple[int, int]] = []
        """Sub-epochs (model's number, worker) in the order in which they begin."""

    def next(
        self, worker: int, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]
    ) -> SubEpoch | None:
        """Next sub-epoch of a worker; None: it waits until a sub-epoch ends. See `Scheduler.next`."""
        candidates = [each for each in progress.candidates(worker) if _allowed(each, progress)]
        if not candidates:
            return None
        work = RemainingWork(progress, estimates, free_in)
        self._plan = [(work.numbers[row], at) for row, at in self._best(work)]
        model = PlanQueues(self._plan).due(worker)
        planned = [each for each in candidates if each.model == model]
        if planned:
            self._plan.remove((model, worker))
        elif progress.running or self._plan:
            return None
        return min(planned or candidates, key=lambda each: _cyclic_order(each, progress))

    def _best(self, work: RemainingWork) -> Plan:
        """The shortest of: the plan so far, greedy's, and newly searched ones."""
        horizon = min(MAX_SUB_EPOCHS, 8 * (len(work.numbers) + len(work.held)))
        bound = work.lower_bound()
        known = [(work.row[number], worker) for number, worker in self._plan if number in work.row]
        seconds, plan = roll_out(work, known, horizon)
        if known and seconds > bound * (1 + MIN_GAIN):
            greedy_seconds, other = roll_out(work, None, horizon)
            if greedy_seconds < seconds * (1 - MIN_GAIN):
                seconds, plan = greedy_seconds, other
        for _ in range(1 if work.progress.running else SEARCHES_AT_REST):
            if seconds <= bound * (1 + MIN_GAIN):
                break
            found = self._search(work, bound, seconds, horizon)
            if found is not None:
                found_seconds, other = roll_out(work, found, horizon)
                if found_seconds < seconds * (1 - MIN_GAIN):
                    seconds, plan = found_seconds, other
        return plan

    def _search(self, work: RemainingWork, bound: float, seconds: float, horizon: int) -> Plan | None:
        """A clearly shorter plan, if one randomized search finds it."""
        self._searches += 1
        rng = random.Random(self._searches)
        weights = [rng.uniform(1 - WEIGHT_SPREAD, 1 + WEIGHT_SPREAD) for _ in work.numbers]
        deadline = bound + (seconds - bound) * DEADLINE_SHARES[self._searches % len(DEADLINE_SHARES)]
        steps = SEARCH_EFFORT // (len(work.numbers) * len(work.held) + 16)
        return find_plan(work, deadline, weights, steps, min(steps, horizon))


def _allowed(candidate: SubEpoch, progress: HoppingProgress) -> bool:
    """Whether a sub-epoch leaves a permitted last partition: the repeated one must not remain alone."""
    remaining, homes = progress.open_partitions(candidate.model), progress.homes
    avoid = repeated_last_partition(progress.models[candidate.model])
    return len(remaining) != 2 or avoid not in remaining or homes[avoid] == homes[candidate.partition]


def _cyclic_order(candidate: SubEpoch, progress: HoppingProgress) -> tuple[bool, int]:
    """Order of a model's partitions on one worker: first the one that must not be last, then cyclic."""
    turn = (candidate.partition - candidate.model - candidate.epoch) % len(progress.homes)
    return candidate.partition != repeated_last_partition(progress.models[candidate.model]), turn
