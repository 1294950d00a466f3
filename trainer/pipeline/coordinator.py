"""Who trains which model next: a thread of the first node's agent, which all workers are connected to."""

import select
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import Config, load
from ..launch.line import Line
from ..launch.store import listening_socket
from ..presence import leading
from ..summary import read_summary, write_summary
from .board import Board, Visit
from .desk import DONE, LOST, STOPPED
from .estimates import Estimates
from .halving import Out
from .live_table import LiveTable
from .parcel import Label
from .schedulers import SCHEDULERS
from .seat import Assigned, Seat
from .selection import Selection
from .terminal import Terminal
from .timetable import Timetable
from .trials import Copies, Trial, place, rescues

NOWHERE = -1
"""In place of the partition: nothing is trained, the trial is tested and its run ended."""
_LOOK_S = 0.05
_LEAVE_S = 30.0
"""What workers get to save what they have when it is over."""
_LEAD_S = 0.25
"""So long before a worker is free, at least, its next visit is decided, and the model sent."""


class Coordinator:
    """Leads a pipeline from its trials' folders to their last checkpoints.

    Args:
        run_dir: the pipeline's own folder.
        host: the address to listen on.
        again: the trials go on from their checkpoints.
        terminal: where a table can be shown.
    """

    def __init__(self, config: Config, run_dir: Path, host: str, again: bool, terminal: Terminal | None = None):
        assert config.pipeline is not None
        self._config = config.pipeline
        self._run_dir = run_dir
        self._workers = config.topology.workers
        self._listening = listening_socket(host)
        self._again = again
        self._terminal = terminal
        self._scheduler = SCHEDULERS[self._config.scheduler]()
        self._estimates = Estimates()
        self._measured: set[int] = set()
        """Models of which a visit has been timed."""
        self._arriving: list[Line] = []
        self._seats: dict[int, Seat] = {}
        self._visits = 0
        self._trials: dict[int, Trial] = {}
        self._epochs: list[int] = []
        """Of every trial of the pipeline, those that are done already included."""
        self._retiring: dict[int, str | None] = {}
        """Trials that are to be ended, and why; None: they are trained."""
        self._ended: str | None = None
        self._status = "failed"
        self._closed = threading.Event()
        self._presence = ExitStack()
        self._thread = threading.Thread(target=self._run, name="leyden-coordinator", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def start(self) -> None:
        """
        Raises:
            ConfigError: another process leads one of the trials.
        """
        every = [Trial(number, folder, load(folder)) for number, folder in enumerate(self._config.folders)]
        self._epochs = [trial.config.trainer.max_epochs for trial in every]
        self._trials = {trial.number: trial for trial in every if not (self._again and trial.done)}
        for trial in self._trials.values():
            self._presence.enter_context(leading(trial.folder))
        self._thread.start()

    def close(self) -> None:
        """All workers have ended."""
        self._closed.set()
        self._thread.join()
        self._presence.close()

    def _run(self) -> None:
        try:
            self._lay_out()
            self._gather()
            while not self._over():
                self._assign()
                self._listen()
                self._table.look()
            self._finish()
        except Exception:
            traceback.print_exc()
        finally:
            for line in (*self._arriving, *(seat.line for seat in self._seats.values())):
                line.close()
            self._listening.close()

    def _lay_out(self) -> None:
        # now, while the workers start: later its seconds would be theirs
        import torch.utils.tensorboard  # noqa: F401

        partitions = next(iter(self._trials.values())).config.dataset.partitions if self._trials else 1
        epochs = {number: self._epochs[number] for number in self._trials}
        self._board = Board(epochs, [partition % self._workers for partition in range(partitions)])
        if self._again:
            for number, trial in self._trials.items():
                place(trial, self._board)
                if self._board.models[number].epoch >= epochs[number]:
                    self._retiring[number] = None
        self._table = LiveTable(self._trials, self._board, self._workers, self._config.metric, self._terminal)
        self._selection = Selection(self._config, self._run_dir, self._epochs)
        self._retire(list(self._selection.resumed()))
        self._timetable = Timetable(self._run_dir, self._workers, [folder.name for folder in self._config.folders])
        write_summary(self._run_dir, {**read_summary(self._run_dir), "status": "running"})

    def _gather(self) -> None:
        """Wait for all workers, or for the end of those that came."""
        self._listening.setblocking(False)
        while len(self._seats) < self._workers and not self._closed.is_set():
            try:
                self._arriving.append(Line(self._listening.accept()[0]))
            except BlockingIOError:
                time.sleep(0.01)
            for line in list(self._arriving):
                for message in line.hear():
                    if message["say"] == "here":
                        self._arriving.remove(line)
                        self._seats[message["rank"]] = Seat(message["rank"], line)
            self._table.look()

    def _over(self) -> bool:
        if self._ended is None:
            if self._closed.is_set() or any(seat.lost for seat in self._seats.values()):
                self._end(LOST)
            elif all(trial.over for trial in self._trials.values()):
                self._status = "done"
                self._end(DONE)
        return self._ended is not None and (
            all(seat.left or seat.line.closed for seat in self._seats.values()) or time.monotonic() > self._leave_by
        )

    def _listen(self) -> None:
        lines = [seat.line for seat in self._seats.values() if not seat.line.closed]
        select.select(lines, [], [], _LOOK_S)
        for seat in self._seats.values():
            if seat.line.closed:
                continue
            seat.line.beat()
            for message in seat.line.hear():
                self._hear(seat, message)

    def _hear(self, seat: Seat, message: dict[str, Any]) -> None:
        match message["say"]:
            case "begun":
                self._begun(seat, message)
            case "kept":
                self._kept(seat, message)
            case "visited":
                self._visited(seat, message)
            case "failed":
                self._failed(seat, message)
            case "stopping":
                self._stop(message["status"])
            case "bye":
                seat.left = True

    def _assign(self) -> None:
        """Give idle workers something to do, and those that will soon be idle what they do next."""
        if self._ended is not None:
            return
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
        return present.left() < _LEAD_S + 2 * self._timetable.slowest_hop

    def _send_away(self, seat: Seat) -> None:
        """Have a model that is not trained any further tested: where it is, if that worker is to be asked."""
        here = [number for number in self._retiring if self._trials[number].has(seat.rank)]
        number = next(iter(here or self._retiring))
        why = self._retiring.pop(number)
        self._send(seat, Visit(number, self._board.models[number].epoch, NOWHERE), why)

    def _send(self, seat: Seat, visit: Visit, stop_reason: str | None = None) -> None:
        self._visits += 1
        trial = self._trials[visit.model]
        assigned = Assigned(self._visits, visit, self._estimates.seconds(visit.model, seat.rank))
        if seat.present is None:
            seat.present = assigned
        else:
            seat.next = assigned
        label, source = None, None
        if trial.copies:
            label = trial.copies[0].label
            source = seat.rank if seat.rank in trial.copies[0].ranks else min(trial.copies[0].ranks, default=None)
        partitions = [] if visit.partition == NOWHERE else self._board.models[visit.model].order
        checkpoint = str(trial.checkpoint) if label is None and trial.checkpoint else None
        seat.line.say(
            say="visit", number=assigned.number, trial=trial.number, epoch=visit.epoch, partitions=partitions,
            label=asdict(label) if label else None, source=source, checkpoint=checkpoint, stop_reason=stop_reason,
        )  # fmt: skip
        if label is not None and label.file is None:
            assert source is not None
            if source != seat.rank:
                self._give(label, source, seat.rank, assigned.number)
                self._timetable.moved(label)
            elif len(trial.copies[0].ranks) == 1 < self._workers:
                self._keep_elsewhere(label, source, assigned.number)

    def _give(self, label: Label, source: int, to: int, tag: int) -> None:
        self._seats[source].line.say(say="give", parcel=label.number, to=to, visit=tag)

    def _keep_elsewhere(self, label: Label, source: int, tag: int) -> None:
        """A model that stays where it is for its next visit would be lost with its worker."""
        other = (source + 1) % self._workers
        self._give(label, source, other, tag)
        self._seats[other].line.say(say="keep", label=asdict(label), source=source, visit=tag)

    def _kept(self, seat: Seat, message: dict[str, Any]) -> None:
        """A worker has a copy of a model that trains elsewhere."""
        trial = self._trials[message["trial"]]
        for copies in trial.copies:
            if copies.label.number == message["parcel"]:
                copies.ranks.add(seat.rank)
                self._forget(trial.outdated())
                return
        seat.line.say(say="forget", parcel=message["parcel"])

    def _begun(self, seat: Seat, message: dict[str, Any]) -> None:
        """A worker has the model."""
        assert seat.present is not None
        assert seat.present.number == message["number"]
        seat.present.begun = time.monotonic()
        trial = self._trials[seat.present.visit.model]
        trial.at = seat.rank
        self._timetable.hop_took(message["hop"])
        if trial.copies:
            trial.copies[0].ranks.add(seat.rank)
            self._forget(trial.outdated())

    def _visited(self, seat: Seat, message: dict[str, Any]) -> None:
        visit = self._ended_visit(seat, message)
        trial = self._trials[visit.model]
        if visit.partition != NOWHERE:
            self._estimates.note(visit.model, seat.rank, message["seconds"])
            self._measured.add(visit.model)
        self._timetable.add(visit, seat.rank, message)
        self._table.note(visit.model, message["metrics"])
        if message["status"] == "left":
            trial.at = None
            if trial.copies:
                self._forget_at(trial.copies[0], {seat.rank})
            label = Label(**message["label"])
            trial.copies.insert(0, Copies(label, set() if label.file else {seat.rank}))
            if self._board.end(visit, message["epoch"] > visit.epoch):
                self._retire(self._selection.report(visit.model, message["epoch"], message["metrics"]))
        elif message["status"] == "done":
            self._give_up(trial, visit)
            self._tell(trial, message["metrics"])
        else:
            trial.at = None
            self._stop(message["status"])

    def _failed(self, seat: Seat, message: dict[str, Any]) -> None:
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
        self._forget(trial.copies)
        trial.copies.clear()
        trial.end()
        self._retire(self._selection.ended(trial.number))

    def _retire(self, outs: Sequence[Out]) -> None:
        """End trials early, and hold those that wait for others."""
        for out in outs:
            if out.trial in self._trials and not self._trials[out.trial].over:
                self._board.withdraw(out.trial)
                self._retiring[out.trial] = out.why
                self._table.say(f"trial {self._trials[out.trial].name} is stopped early: {out.why}")
        for number, at in self._board.models.items():
            at.held = self._selection.holds(number)

    def _forget(self, copies: Sequence[Copies]) -> None:
        for each in copies:
            self._forget_at(each, set(each.ranks))

    def _forget_at(self, copies: Copies, ranks: set[int]) -> None:
        for rank in ranks & copies.ranks:
            self._seats[rank].line.say(say="forget", parcel=copies.label.number)
        copies.ranks -= ranks

    def _tell(self, trial: Trial, metrics: dict[str, float]) -> None:
        names = (self._config.metric, "test/acc")
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)
        done = sum(trial.over for trial in self._trials.values())
        self._table.say(f"trial {trial.name} is done ({done} of {len(self._trials)})  {shown}")

    def _stop(self, status: str) -> None:
        """A signal has come."""
        if self._ended is None:
            self._status = status
            self._end(STOPPED)

    def _end(self, why: str) -> None:
        """Tell everybody that it is over, and who has to save what. Once."""
        assert self._ended is None
        self._ended = why
        self._leave_by = time.monotonic() + _LEAVE_S
        living = {rank for rank, seat in self._seats.items() if not seat.line.closed}
        save = rescues(list(self._trials.values()), living)
        for rank in living:
            self._seats[rank].line.say(say="end", why=why, save=save[rank])

    def _finish(self) -> None:
        self._table.close()
        if self._ended == STOPPED:
            for trial in self._trials.values():
                if not trial.over:
                    write_summary(trial.folder, {**read_summary(trial.folder), "status": self._status})
        summary = {**read_summary(self._run_dir), **self._timetable.summary()}
        if self._ended != LOST:
            summary["status"] = self._status
        write_summary(self._run_dir, summary)
        self._timetable.draw()
        if self._ended == DONE:
            print(self._timetable.text(), flush=True)
