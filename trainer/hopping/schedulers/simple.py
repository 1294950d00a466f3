"""Scheduler protocol, the two fixed schedules, and the schedulers by name."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..progress import HoppingProgress, SubEpoch
from .estimates import Estimates
from .greedy import Greedy


class Scheduler(Protocol):
    """Policy that chooses the next sub-epoch of a worker; `HoppingProgress` knows which are possible.

    Every idle worker is asked whenever a sub-epoch ends or a model is withdrawn, cancelled or resumed: a worker that
    waits (None) is asked again. While work remains and no sub-epoch is running, at least one worker is given one.
    """

    def next(
        self, worker: int, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]
    ) -> SubEpoch | None:
        """Next sub-epoch of a worker; None: it waits.

        Args:
            worker: is idle, or soon will be.
            free_in: seconds until each worker has finished its assignments; infinite: it is lost.
        """
        ...


class Ring:
    """Cyclic schedule: model i begins its epoch e at partition (i + e) mod P, a Latin square, the same in every run.

    Each epoch begins one partition further, so that no partition is always the last: the samples trained on last
    weigh most. Among the models due at a worker the one behind in epochs is first, then the lower number. A resumed
    model first finishes the partition that it was interrupted in, then continues over the remaining ones.
    """

    def next(
        self, worker: int, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]
    ) -> SubEpoch | None:
        return _first_due(worker, progress, lambda model, epoch: model + epoch)


class Systolic:
    """Systolic schedule: all models enter at partition 0, in order, and pass through one after the other."""

    def next(
        self, worker: int, progress: HoppingProgress, estimates: Estimates, free_in: Sequence[float]
    ) -> SubEpoch | None:
        return _first_due(worker, progress, lambda model, epoch: 0)


def _first_due(worker: int, progress: HoppingProgress, start: Callable[[int, int], int]) -> SubEpoch | None:
    """First sub-epoch, by epoch and model, due at the worker in a cyclic order.

    Args:
        start: partition at which a model begins an epoch.
    """
    partitions = len(progress.homes)

    def due(candidate: SubEpoch) -> int:
        begins = start(candidate.model, candidate.epoch)
        return min(progress.open_partitions(candidate.model), key=lambda partition: (partition - begins) % partitions)

    candidates = [each for each in progress.candidates(worker) if each.partition == due(each)]
    return min(candidates, key=lambda each: (each.epoch, each.model), default=None)


SCHEDULERS: dict[str, type[Scheduler]] = {"ring": Ring, "systolic": Systolic, "greedy": Greedy}
"""Schedulers by their names in the config."""
