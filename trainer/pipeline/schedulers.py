"""Which model an idle worker takes: three schedulers, by name."""

from collections.abc import Callable, Sequence
from typing import Protocol

from .board import Board, Visit
from .estimates import Estimates
from .greedy import Greedy


class Scheduler(Protocol):
    """Decides; `Board` knows what may be decided.

    Every idle worker is asked whenever something has ended or was withdrawn, given up or resumed: a worker that waits
    (None) is asked again. Where nothing is under way and something is left to do, at least one worker takes a visit.
    """

    def next(self, worker: int, board: Board, estimates: Estimates, free_in: Sequence[float]) -> Visit | None:
        """What a worker is to do next; None: it waits.

        Args:
            worker: is idle, or soon will be.
            free_in: seconds until each worker is done with all that it has begun; infinite: it does not come back.
        """
        ...


class Ring:
    """Model i begins its epoch e at partition (i + e) mod P and goes round: a Latin square, the same in every run.

    The epochs begin one partition further each time, so that no partition is always the last. Where several models are
    due at a worker, the one behind in epochs is first, then the lower number. A resumed model first finishes the
    partition that it stands in, and goes round over those that are left.
    """

    def next(self, worker: int, board: Board, estimates: Estimates, free_in: Sequence[float]) -> Visit | None:
        return _first_in(worker, board, lambda model, epoch: model + epoch)


class Systolic:
    """All models come in at partition 0, in their order, and go through one after the other."""

    def next(self, worker: int, board: Board, estimates: Estimates, free_in: Sequence[float]) -> Visit | None:
        return _first_in(worker, board, lambda model, epoch: 0)


def _first_in(worker: int, board: Board, start: Callable[[int, int], int]) -> Visit | None:
    """The first visit, by epoch and number, of a model that goes round from a partition and is due at the worker."""
    partitions = len(board.homes)

    def due(visit: Visit) -> int:
        begins = start(visit.model, visit.epoch)
        return min(board.open(visit.model), key=lambda partition: (partition - begins) % partitions)

    here = [visit for visit in board.here(worker) if visit.partition == due(visit)]
    return min(here, key=lambda visit: (visit.epoch, visit.model), default=None)


SCHEDULERS: dict[str, type[Scheduler]] = {"ring": Ring, "systolic": Systolic, "greedy": Greedy}
"""By the name that a config gives."""
