"""Where the states of the models lie, and how they come to the workers that need them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .parcel import Label
from .seat import Seat
from .timetable import Timetable
from .trials import Copies, Trial


class Deliveries:
    """Has workers send, keep and forget states: each is at two workers, or on disk, before an older one is dropped.

    Args:
        workers: how many there are.
    """

    def __init__(self, seats: Mapping[int, Seat], workers: int, timetable: Timetable):
        self._seats = seats
        self._workers = workers
        self._timetable = timetable

    def order(self, trial: Trial, seat: Seat, number: int, **visit: Any) -> None:
        """Tell a worker to make a visit, and have the model brought to it.

        Args:
            number: of the visit.
            visit: the rest of what the worker is told.
        """
        label, source, checkpoint = None, None, None
        if trial.copies:
            label = trial.copies[0].label
            source = seat.rank if trial.has(seat.rank) else min(trial.copies[0].ranks, default=None)
        elif trial.checkpoint is not None:
            checkpoint = str(trial.checkpoint)
        seat.line.say(
            say="visit", number=number, trial=trial.number, label=asdict(label) if label else None, source=source,
            checkpoint=checkpoint, **visit,
        )  # fmt: skip
        if label is None or label.file is not None:
            return
        assert source is not None
        if source != seat.rank:
            self._give(label, source, seat.rank, number)
            self._timetable.moved(label)
        elif len(trial.copies[0].ranks) == 1 < self._workers:
            self._keep_elsewhere(label, source, number)

    def _give(self, label: Label, source: int, to: int, tag: int) -> None:
        self._seats[source].line.say(say="give", parcel=label.number, to=to, visit=tag)

    def _keep_elsewhere(self, label: Label, source: int, tag: int) -> None:
        """A model that stays where it is for its next visit would be lost with its worker."""
        other = (source + 1) % self._workers
        self._give(label, source, other, tag)
        self._seats[other].line.say(say="keep", label=asdict(label), source=source, visit=tag)

    def kept(self, trial: Trial, rank: int, parcel: int) -> None:
        """A worker has a copy of a model that trains elsewhere."""
        for copies in trial.copies:
            if copies.label.number == parcel:
                copies.ranks.add(rank)
                self._forget(trial.outdated())
                return
        self._seats[rank].line.say(say="forget", parcel=parcel)

    def arrived(self, trial: Trial, rank: int) -> None:
        """A worker has begun to train the model that was sent to it."""
        if trial.copies:
            trial.copies[0].ranks.add(rank)
            self._forget(trial.outdated())

    def left(self, trial: Trial, rank: int, label: Label) -> None:
        """A visit has made a new state, which is at the worker that made it."""
        if trial.copies:
            self._forget_at(trial.copies[0], {rank})
        trial.copies.insert(0, Copies(label, set() if label.file else {rank}))

    def drop(self, trial: Trial) -> None:
        """The model is not trained any further."""
        self._forget(trial.copies)
        trial.copies.clear()

    def _forget(self, copies: Sequence[Copies]) -> None:
        for each in copies:
            self._forget_at(each, set(each.ranks))

    def _forget_at(self, copies: Copies, ranks: set[int]) -> None:
        for rank in ranks & copies.ranks:
            self._seats[rank].line.say(say="forget", parcel=copies.label.number)
        copies.ranks -= ranks
