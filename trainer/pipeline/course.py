"""Who trains which model next, and what follows from a visit that was made."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import Pipeline
from .board import Board, Visit
from .deliveries import Deliveries
from .estimates import Estimates
from .halving import Out
from .live_table import LiveTable
from .parcel import Label
from .schedulers import SCHEDULERS
from .seat import Assigned, Seat
from .selection import Selection
from .terminal import Terminal
from .timetable import Timetable
from .trials import Trial, place, rescues

NOWHERE = -1
"""In place of the partition: nothing is trained, the trial is tested and its run ended."""
_LEAD_S = 0.25
"""So long before a worker is free, at least, its next visit is decided, and the model sent."""


class Course:
    """The trials of a pipeline on their way over the workers.

    Args:
        run_dir: the pipeline's own folder.
        trials: those that are to be trained, by their numbers.
        epochs: of every trial, of those that are done already, too.
        seats: the workers; all are there before the first visit.
        terminal: where a table can be shown.
    """

    def __init__(
        self,
        settings: Pipeline,
        run_dir: Path,
        trials: Mapping[int, Trial],
        epochs: Sequence[int],
        seats: Mapping[int, Seat],
        workers: int,
        terminal: Terminal | None = None,
    ):
        self._trials = trials
        self._seats = seats
        self._workers = workers
        self._metric = settings.metric
        self._scheduler = SCHEDULERS[settings.scheduler]()
        self._estimates = Estimates()
        self._measured: set[int] = set()
        """Models of which a visit has been timed."""
        self._visits = 0
        self._retiring: dict[int, str | None] = {}
        """Trials that are to be ended, and why; None: they are trained."""
        partitions = next(iter(trials.values())).config.dataset.partitions if trials else 1
        self._board = Board({number: epochs[number] for number in trials}, [p % workers for p in range(partitions)])
        self._place(epochs)
        self.table = LiveTable(trials, self._board, workers, settings.metric, terminal)
        self._selection = Selection(settings, run_dir, epochs)
        self._retire(list(self._selection.resumed()))
        self.timetable = Timetable(run_dir, workers, [folder.name for folder in settings.folders(run_dir)])
        self._deliveries = Deliveries(seats, workers, self.timetable)

    def _place(self, epochs: Sequence[int]) -> None:
        for number, trial in self._trials.items():
            place(trial, self._board)
            if self._board.models[number].epoch >= epochs[number]:
                self._retiring[number] = None

    @property
    def over(self) -> bool:
        return all(trial.over for trial in self._trials.values())

    def rescues(self, living: set[int]) -> dict[int, list[int]]:
        """The parcels that each living worker has to save where it goes no further."""
        return rescues(list(self._trials.values()), living)

    def assign(self) -> None:
        """Give idle workers something to do, and those that will soon be idle what they do next."""
        for rank, seat in sorted(self._seats.items()):
            if seat.present is not None and (seat.next is not None or not self._soon(seat.present)):
                continue
            if self._retiring:
                self._send_away(seat)
                continue
            free_in = [self._seats[other].free_in() for other in range(self._workers)]
            visit = self._scheduler.next(rank, self._board, self._estimates, free_in)
            if visit is not None:
                self._board.begin(visit)
                self._send(seat, visit)

    def _soon(self, present: Assigned) -> bool:
        """Whether it is time to decide what comes after a visit: as late as the hop allows."""
        if present.visit.model not in self._measured:
            return True
        return present.left() < _LEAD_S + 2 * self.timetable.slowest_hop

    def _send_away(self, seat: Seat) -> None:
        """Have a model that is not trained any further tested: where it is, if that worker is to be asked."""
        here = [number for number in self._retiring if self._trials[number].has(seat.rank)]
        number = next(iter(here or self._retiring))
        why = self._retiring.pop(number)
        self._send(seat, Visit(number, self._board.models[number].epoch, NOWHERE), why)

    def _send(self, seat: Seat, visit: Visit, stop_reason: str | None = None) -> None:
        self._visits += 1
        assigned = Assigned(self._visits, visit, self._estimates.seconds(visit.model, seat.rank))
        if seat.present is None:
            seat.present = assigned
        else:
            seat.next = assigned
        partitions = [] if visit.partition == NOWHERE else self._board.models[visit.model].order
        self._deliveries.order(
            self._trials[visit.model], seat, assigned.number, epoch=visit.epoch, partitions=partitions,
            stop_reason=stop_reason,
        )  # fmt: skip

    def kept(self, seat: Seat, message: dict[str, Any]) -> None:
        self._deliveries.kept(self._trials[message["trial"]], seat.rank, message["parcel"])

    def begun(self, seat: Seat, message: dict[str, Any]) -> None:
        """A worker has the model."""
        assert seat.present is not None
        assert seat.present.number == message["number"]
        seat.present.begun = time.monotonic()
        trial = self._trials[seat.present.visit.model]
        trial.at = seat.rank
        self.timetable.hop_took(message["hop"])
        self._deliveries.arrived(trial, seat.rank)

    def visited(self, seat: Seat, message: dict[str, Any]) -> None:
        visit = self._ended_visit(seat, message)
        trial = self._trials[visit.model]
        if visit.partition != NOWHERE:
            self._estimates.note(visit.model, seat.rank, message["seconds"])
            self._measured.add(visit.model)
        self.timetable.add(visit, seat.rank, message)
        self.table.note(visit.model, message["metrics"])
        if message["status"] == "done":
            self._give_up(trial, visit)
            self._tell(trial, message["metrics"])
            return
        trial.at = None
        if message["status"] == "left":
            self._deliveries.left(trial, seat.rank, Label(**message["label"]))
            if self._board.end(visit, message["epoch"] > visit.epoch):
                self._retire(self._selection.report(visit.model, message["epoch"], message["metrics"]))

    def failed(self, seat: Seat, message: dict[str, Any]) -> None:
        visit = self._ended_visit(seat, message)
        self._give_up(self._trials[visit.model], visit)

    def _ended_visit(self, seat: Seat, message: dict[str, Any]) -> Visit:
        ended = seat.present
        assert ended is not None
        assert ended.number == message["number"]
        seat.present, seat.next = seat.next, None
        self._trials[ended.visit.model].log(message["log"])
        return ended.visit

    def _give_up(self, trial: Trial, visit: Visit) -> None:
        """It is not trained any further."""
        if visit.partition != NOWHERE:
            self._board.end(visit)
        self._board.withdraw(trial.number)
        self._deliveries.drop(trial)
        trial.end()
        self._retire(self._selection.ended(trial.number))

    def _retire(self, outs: Sequence[Out]) -> None:
        """End trials early, and hold those that wait for others."""
        for out in outs:
            if out.trial in self._trials and not self._trials[out.trial].over:
                self._board.withdraw(out.trial)
                self._retiring[out.trial] = out.why
                self.table.say(f"trial {self._trials[out.trial].name} is stopped early: {out.why}")
        for number, at in self._board.models.items():
            at.held = self._selection.holds(number)

    def _tell(self, trial: Trial, metrics: dict[str, float]) -> None:
        names = (self._metric, "test/acc")
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)
        done = sum(trial.over for trial in self._trials.values())
        self.table.say(f"trial {trial.name} is done ({done} of {len(self._trials)})  {shown}")
