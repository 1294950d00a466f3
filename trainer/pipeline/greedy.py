"""The scheduler that measures: longest model first, and a plan where that is not good enough."""

import random
from collections.abc import Sequence

from .board import Board, Visit
from .estimates import Estimates
from .look_ahead import Queues, go_on
from .outlook import Outlook, Plan, repeated_ending
from .search import plan_until

GOOD = 1e-3
"""Share of the seconds that a better plan must save, or it is not worth the change."""
SHARES = (0.1, 0.7)
"""The searches in turn: of what a plan takes beyond the least possible a better one may take so much."""
SPREAD = 0.3
"""By so much the weights of the models differ from one search to the next: each goes another way."""
MOST_VISITS = 256
"""A plan looks no further ahead: what comes after counts as what it takes at least."""
EFFORT = 6000
"""Of a search; a step costs the number of models times workers and 16 more. It takes one to two milliseconds."""
AT_REST = 8
"""So many searches are made where nothing is under way; else one."""


class Greedy:
    """Any idle worker takes the model with the most left to do that has not seen its partition.

    Before it does, the scheduler looks ahead in the estimated times. Where the rule wastes time, it searches for a plan
    that does not, and keeps to the best one found for as long as new measurements and decisions confirm it; by a plan a
    worker may wait for a model. Where several workers are idle, a model goes to the one whose partition is the next,
    going round from model + epoch; no partition ends four epochs of a model in a row.
    """

    def __init__(self):
        self._searches = 0
        self._plan: list[tuple[int, int]] = []
        """Visits (the model's number, the worker) in the order in which they begin."""

    def next(self, worker: int, board: Board, estimates: Estimates, free_in: Sequence[float]) -> Visit | None:
        """What a worker is to do next; None: it waits until some visit has ended.

        Args:
            worker: is idle, or soon will be.
            free_in: seconds until each worker is done with all that it has begun; infinite: it does not come back.
        """
        here = [visit for visit in board.here(worker) if _allowed(visit, board)]
        if not here:
            return None
        outlook = Outlook(board, estimates, free_in)
        self._plan = [(outlook.numbers[row], at) for row, at in self._best(outlook)]
        model = Queues(self._plan).due(worker)
        chosen = [visit for visit in here if visit.model == model]
        if chosen:
            self._plan.remove((model, worker))
        elif board.under_way or self._plan:
            return None
        return min(chosen or here, key=lambda visit: _turn(visit, board))

    def _best(self, outlook: Outlook) -> Plan:
        """The plan so far, or the rule's, or one found now."""
        visits = min(MOST_VISITS, 8 * (len(outlook.numbers) + len(outlook.held)))
        least = outlook.least()
        known = [(outlook.row[number], worker) for number, worker in self._plan if number in outlook.row]
        seconds, plan = go_on(outlook, known, visits)
        if known and seconds > least * (1 + GOOD):
            by_rule, other = go_on(outlook, None, visits)
            if by_rule < seconds * (1 - GOOD):
                seconds, plan = by_rule, other
        for _ in range(1 if outlook.board.under_way else AT_REST):
            if seconds <= least * (1 + GOOD):
                break
            found = self._search(outlook, least, seconds, visits)
            if found is not None:
                by_search, other = go_on(outlook, found, visits)
                if by_search < seconds * (1 - GOOD):
                    seconds, plan = by_search, other
        return plan

    def _search(self, outlook: Outlook, least: float, seconds: float, most_visits: int) -> Plan | None:
        """A plan of clearly fewer seconds, perhaps; every search tries others."""
        self._searches += 1
        chance = random.Random(self._searches)
        weights = [chance.uniform(1 - SPREAD, 1 + SPREAD) for _ in outlook.numbers]
        deadline = least + (seconds - least) * SHARES[self._searches % len(SHARES)]
        steps = EFFORT // (len(outlook.numbers) * len(outlook.held) + 16)
        return plan_until(outlook, deadline, weights, steps, min(steps, most_visits))


def _allowed(visit: Visit, board: Board) -> bool:
    """Whether a model may leave its other partitions for later: one that ended its last epochs must not be the last."""
    still_open = board.open(visit.model)
    avoid = repeated_ending(board.models[visit.model])
    return len(still_open) != 2 or avoid not in still_open or board.homes[avoid] == board.homes[visit.partition]


def _turn(visit: Visit, board: Board) -> tuple[bool, int]:
    """A model's partitions at one worker: first the one that must not be the last, then going round."""
    turn = (visit.partition - visit.model - visit.epoch) % len(board.homes)
    return visit.partition != repeated_ending(board.models[visit.model]), turn
