"""The life of a pipeline: a thread of the first node's agent, which all workers are connected to."""

import select
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..checkpoint_names import saved, step_of
from ..config import Config, load
from ..launch.line import Line
from ..launch.store import listening_socket
from ..presence import leading
from ..summary import read_summary, write_summary
from .course import Course
from .desk import DONE, LOST, STOPPED
from .meeting_place import LEAVE_S
from .seat import Seat
from .terminal import Terminal
from .trials import Trial

_LOOK_S = 0.05


class Coordinator:
    """Leads a pipeline from its trials' folders to their last checkpoints.

    Args:
        run_dir: the pipeline's own folder.
        host: the address to listen on.
        terminal: where a table can be shown.
    """

    def __init__(self, config: Config, run_dir: Path, host: str, terminal: Terminal | None = None):
        assert config.pipeline is not None
        self._settings = config.pipeline
        self._run_dir = run_dir
        self._workers = config.topology.workers
        self._listening = listening_socket(host)
        self._terminal = terminal
        self._arriving: list[Line] = []
        self._seats: dict[int, Seat] = {}
        self._trials: dict[int, Trial] = {}
        self._epochs: list[int] = []
        """Of every trial of the pipeline, those that are done already included."""
        self._ended: str | None = None
        self._status = "failed"
        self._closed, self._broken = threading.Event(), threading.Event()
        self._dead: set[int] = set()
        """Workers that have ended, of those that this node knows."""
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
        folders = self._settings.folders(self._run_dir)
        every = [Trial(number, folder, load(folder)) for number, folder in enumerate(folders)]
        self._epochs = [trial.config.trainer.max_epochs for trial in every]
        self._trials = {trial.number: trial for trial in every if not trial.done}
        for trial in self._trials.values():
            self._presence.enter_context(leading(trial.folder))
        self._thread.start()

    def broken(self, dead: Collection[int]) -> None:
        """The attempt has failed. `dead`: workers of this node that have ended.

        A dead worker's connection may outlive it, in processes that it had started; that of a dead host says nothing.
        """
        self._dead.update(dead)
        self._broken.set()

    def close(self) -> None:
        """All workers have ended."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._presence.close()

    def _run(self) -> None:
        try:
            self._course = self._laid_out()
            self._gather()
            while not self._over():
                if self._ended is None:
                    self._course.assign()
                self._listen()
                self._course.table.look()
            self._finish()
        except Exception:
            traceback.print_exc()
        finally:
            for line in (*self._arriving, *(seat.line for seat in self._seats.values())):
                line.close()
            self._listening.close()

    def _laid_out(self) -> Course:
        # now, while the workers start: later its seconds would be theirs
        import torch.utils.tensorboard  # noqa: F401

        course = Course(
            self._settings, self._run_dir, self._trials, self._epochs, self._seats, self._workers, self._terminal
        )
        write_summary(self._run_dir, {**read_summary(self._run_dir), "status": "running"})
        return course

    def _gather(self) -> None:
        """Wait for all workers, or for the end of those that came."""
        self._listening.setblocking(False)
        while len(self._seats) < self._workers and not (self._broken.is_set() or self._closed.is_set()):
            try:
                self._arriving.append(Line(self._listening.accept()[0]))
            except BlockingIOError:
                time.sleep(0.01)
            for line in list(self._arriving):
                self._seat(line)
            self._course.table.look()

    def _seat(self, line: Line) -> None:
        """Know a worker by the first thing that it says."""
        seat = None
        for message in line.hear():
            if seat is not None:
                self._hear(seat, message)
            elif message["say"] == "here":
                self._arriving.remove(line)
                seat = self._seats[message["rank"]] = Seat(message["rank"], line)

    def _over(self) -> bool:
        if self._ended is None:
            if self._broken.is_set() or self._closed.is_set() or any(seat.lost for seat in self._seats.values()):
                self._end(LOST)
            elif self._course.over:
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
            case "begun" | "kept" if self._ended is not None:
                pass  # a state that somebody was told to save must not be forgotten for it
            case "begun":
                self._course.begun(seat, message)
            case "kept":
                self._course.kept(seat, message)
            case "visited":
                self._course.visited(seat, message)
                if message["status"] not in ("left", "done"):
                    self._stop(message["status"])
            case "failed":
                self._course.failed(seat, message)
            case "stopping":
                self._stop(message["status"])
            case "lost":
                self._end(LOST)
            case "bye":
                seat.left = True

    def _stop(self, status: str) -> None:
        """A signal has come."""
        if self._ended is None:
            self._status = status
        self._end(STOPPED)

    def _end(self, why: str) -> None:
        """Tell everybody that it is over, and who has to save what, once."""
        if self._ended is not None:
            return
        self._ended = why
        self._leave_by = time.monotonic() + LEAVE_S
        for rank in self._dead & set(self._seats):
            self._seats[rank].line.close()
        living = {rank for rank, seat in self._seats.items() if not seat.line.closed}
        save = self._course.rescues(living)
        for rank in living:
            self._seats[rank].line.say(say="end", why=why, save=save[rank])

    def _finish(self) -> None:
        self._course.table.close()
        if self._ended == STOPPED:
            for trial in self._trials.values():
                if not trial.over:
                    steps = max(map(step_of, saved(trial.folder)), default=0)
                    ended = {"status": self._status, "steps": steps}
                    write_summary(trial.folder, {**read_summary(trial.folder), **ended})
        timetable = self._course.timetable
        summary = {**read_summary(self._run_dir), **timetable.summary()}
        if self._ended != LOST:
            summary["status"] = self._status
        write_summary(self._run_dir, summary)
        timetable.draw()
        if self._ended == DONE:
            print(timetable.text(), flush=True)
