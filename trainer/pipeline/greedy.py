"""The scheduler that measures: longest model first, and a plan where that is not good enough."""

from collections.abc import Sequence

from .board import Board, Visit
from .estimates import Estimates
from .look_ahead import Queues, go_on
from .outlook import Outlook, Plan, repeated_ending
from .search import plan_until

GOOD = 1e-3
"""A plan whose seconds exceed the least possible by this share is not improved; nor one by less than this share."""
TARGETS = (1e-3, 1e-2, 3e-2)
"""Such excesses over the least possible are searched for, one after the other."""


class Greedy:
    """Any idle worker takes the model with the most left to do that has not seen its partition.

    Before it does, the scheduler looks ahead in the estimated times. Where the rule wastes time, it searches for a plan
    that does not, and keeps to the best one found for as long as new measurements and decisions confirm it; by a plan a
    worker may wait for a model. Where several workers are idle, a model goes to the one whose partition is the next,
    going round from model + epoch; no partition ends three epochs of a model in a row.

    Args:
        steps: visits that a decision tries in its search.
    """

    def __init__(self, steps: int = 300):
        self._steps = steps
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
        else:
            self._plan = []
        return min(chosen or here, key=lambda visit: _turn(visit, board))

    def _best(self, outlook: Outlook) -> Plan:
        visits = 8 * (len(outlook.numbers) + len(outlook.held))
        least = outlook.least()
        known = [(outlook.row[number], worker) for number, worker in self._plan if number in outlook.row]
        seconds, plan = go_on(outlook, known, visits)
        if known and seconds > least * (1 + GOOD):
            other = go_on(outlook, None, visits)
            if other[0] < seconds * (1 - GOOD):
                seconds, plan = other
        for excess in TARGETS:
            if seconds <= least * (1 + excess + GOOD):
                break
            found = plan_until(outlook, least * (1 + excess), self._steps // len(TARGETS), visits)
            if found is not None:
                other = go_on(outlook, found, visits)
                if other[0] < seconds * (1 - GOOD):
                    return other[1]
        return plan


def _allowed(visit: Visit, board: Board) -> bool:
    """Whether a model may leave its other partitions for later: one that ended its last epochs must not be the last."""
    still_open = board.open(visit.model)
    avoid = repeated_ending(board.models[visit.model])
    return len(still_open) != 2 or avoid not in still_open or board.homes[avoid] == board.homes[visit.partition]


def _turn(visit: Visit, board: Board) -> tuple[bool, int]:
    """A model's partitions at one worker: first the one that must not be the last, then going round."""
    turn = (visit.partition - visit.model - visit.epoch) % len(board.homes)
    return visit.partition != repeated_ending(board.models[visit.model]), turn
