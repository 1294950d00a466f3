"""A parameter server: one process that holds a piece of the parameters, and, the first one, the counter of tickets."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..config import Config
from ..targets import locate
from . import files
from .pieces import Piece, bounds, cut
from .tickets import Meeting, Stretch, Tickets
from .wire import MEETINGS, RATES, TYPES, Ask, Pair, header, open_store

_LOOK_EVERY_S = 0.2


def serve(config: Config, run_dir: Path, index: int) -> None:
    """Serve all workers until the last has left.

    Raises:
        RuntimeError: a worker is gone without having left.
        FloatingPointError: a push that is not finite.
        ValueError: a checkpoint's file is missing or damaged.
    """
    torch.set_num_threads(1)
    Server(config, run_dir, index).run()


class Server:
    """What the threads share, one for each worker. `changed` guards all of it."""

    def __init__(self, config: Config, run_dir: Path, index: int):
        self.config = config
        self.run_dir = run_dir
        self.index = index
        self.workers = config.topology.workers
        self.servers = config.servers
        self.strategy = locate(config.strategy.target)
        self.changed = threading.Condition()
        self.piece: Piece | None = None
        self.tickets: Tickets = self.strategy.make_tickets(config)
        self.recording: Any = None
        if config.strategy.arguments.get("record") and index == 0:
            self.recording = open(run_dir / "events.csv", "a")  # noqa: SIM115  # until the process ends
        self.present = set(range(self.workers))
        self.incarnations = dict.fromkeys(range(self.workers), 0)
        """How often each worker that is expected was started again."""
        self.met: set[int] = set()
        """Who waits for the others."""
        self.error: BaseException | None = None

    def run(self) -> None:
        for worker in range(self.workers):
            self._listen_to(worker, 0)
        if self.config.elastic:
            threading.Thread(target=self._expect_newcomers, daemon=True).start()
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or not self.present)
        if self.recording is not None:
            self.recording.close()
        if self.error is not None:
            raise self.error

    def _listen_to(self, worker: int, incarnation: int) -> None:
        threading.Thread(target=self._guard, args=(worker, incarnation), daemon=True).start()

    def _expect_newcomers(self) -> None:
        """The agent says in the store which workers have died, and which it has started again."""
        store, lost = open_store(), dict.fromkeys(range(self.workers), -1)
        while True:
            time.sleep(_LOOK_EVERY_S)
            for worker in range(self.workers):
                gone = _number(store, f"leyden/worker/{worker}/gone")
                if gone > lost[worker]:
                    lost[worker] = gone
                    self._without(worker, gone)
                newest = _number(store, f"leyden/worker/{worker}/incarnation")
                if newest > self.incarnations[worker]:
                    self.incarnations[worker] = newest
                    self._listen_to(worker, newest)

    def _guard(self, worker: int, incarnation: int) -> None:
        try:
            conversation = Conversation(self, worker, Pair(self.index, worker, incarnation, at_server=True))
            try:
                conversation.run()
            except RuntimeError:  # gloo's word for a dead peer
                if not self.config.elastic:
                    raise
            self._without(worker, incarnation)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _without(self, worker: int, incarnation: int) -> None:
        """A worker has left, or is gone: nobody waits for it, and what it was at is given to another."""
        with self.changed:
            if incarnation != self.incarnations[worker]:
                return
            self.present.discard(worker)
            self.tickets.lose(worker)
            if self.piece is not None:
                self.piece.lose(worker)
            elif worker == 0:
                self.error = self.error or RuntimeError("worker 0 is gone, and had not said where training begins")
            self.open_the_room()
            self.changed.notify_all()

    def open_the_room(self) -> None:
        """Let everybody go where all have met."""
        if self.present <= self.met:
            self.met.clear()

    @property
    def training(self) -> bool:
        """Whether tickets are given out, so that a newcomer can join."""
        return self.tickets.stretch is not None and self.tickets.meeting is None and not self.met

    def note(self, worker: int, kind: str) -> None:
        """Record an event; called with `changed` held, so that the order is that of the effects."""
        if self.recording is not None:
            self.recording.write(f"{worker},{kind}\n")
            self.recording.flush()

    def begin_at(self, values: torch.Tensor, segments: list[tuple[int, int]]) -> Piece:
        with self.changed:
            self.piece = self.strategy.make_piece(self.config, values, segments)
            self.changed.notify_all()
        assert self.piece is not None
        return self.piece

    def the_piece(self) -> Piece:
        """Waits until one worker has said where to begin."""
        if self.piece is None:
            self.changed.wait_for(lambda: self.piece is not None)
        assert self.piece is not None
        return self.piece


def _number(store: Any, key: str) -> int:
    return int(store.get(key)) if store.check([key]) else -1


class Conversation:
    """One worker's requests, answered one after the other in a thread of their own."""

    def __init__(self, server: Server, worker: int, pair: Pair):
        self.server = server
        self.worker = worker
        self.pair = pair

    def run(self) -> None:
        """Until the worker leaves."""
        answers: dict[int, Callable[[list[float]], None]] = {
            Ask.START: self._start,
            Ask.RESTORE: self._restore,
            Ask.PULL: self._pull,
            Ask.LOOK: self._look,
            Ask.PUSH: self._push,
            Ask.BEGIN: self._begin,
            Ask.TICKET: self._ticket,
            Ask.SAVE: self._save,
            Ask.MEASURE: self._measure,
            Ask.MEET: self._meet,
            Ask.WHERE: self._where,
        }
        while True:
            asked = self.pair.receive_header()
            if int(asked[0]) == Ask.LEAVE:
                return
            answers[int(asked[0])](asked)

    def _segments(self, rows: int) -> list[tuple[int, int]]:
        table = self.pair.receive(torch.empty(rows, 2, dtype=torch.int64))
        return [(int(group), int(elements)) for group, elements in table.tolist()]

    def _start(self, asked: list[float]) -> None:
        elements, kind, rows = int(asked[1]), TYPES[int(asked[2])], int(asked[3])
        start, end = bounds(elements, self.server.servers, self.server.index)
        segments = self._segments(rows)
        values = self.pair.receive(torch.empty(end - start, dtype=kind))
        self.server.begin_at(values, cut(segments, start, end))
        self.pair.send(header(0))

    def _restore(self, asked: list[float]) -> None:
        elements, kind, rows, step, servers = int(asked[1]), TYPES[int(asked[2])], *(int(n) for n in asked[3:6])
        start, end = bounds(elements, self.server.servers, self.server.index)
        segments = self._segments(rows)
        state = files.load(self.server.run_dir, step, servers, start, end)
        piece = self.server.begin_at(torch.empty(end - start, dtype=kind), cut(segments, start, end))
        piece.restore(state)
        self.pair.send(header(0))

    def _pull(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:
            piece = server.the_piece()
            began = perf_counter()
            values, version = piece.pull(self.worker).clone(), piece.version
            piece.load.busy_seconds += perf_counter() - began
            server.note(self.worker, "pull")
        self._answer_values(values, version)

    def _look(self, asked: list[float]) -> None:
        with self.server.changed:
            piece = self.server.the_piece()
            values, version = piece.values.clone(), piece.version
        self._answer_values(values, version)

    def _answer_values(self, values: torch.Tensor, version: int) -> None:
        self.pair.send(header(version))
        self.pair.send(values)

    def _push(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:
            buffer = torch.empty_like(server.the_piece().values)
        value = self.pair.receive(buffer)
        with server.changed:
            piece = server.the_piece()
            server.changed.wait_for(lambda: piece.may_push(self.worker))
            began = perf_counter()
            late = piece.push(self.worker, value, tuple(asked[RATES:]))
            piece.load.busy_seconds += perf_counter() - began
            server.note(self.worker, "push")
            server.changed.notify_all()
        self.pair.send(header(late))

    def _begin(self, asked: list[float]) -> None:
        stretch = Stretch(*(int(number) for number in asked[1:6]))
        with self.server.changed:
            known = self.server.tickets.stretch
            if known is None or stretch.serial > known.serial:
                self.server.note(-1, "begin")
            self.server.tickets.begin(stretch)
            self.server.changed.notify_all()
        self.pair.send(header(0))

    def _ticket(self, asked: list[float]) -> None:
        wanted: Any = MEETINGS[int(asked[1])]
        with self.server.changed:
            if wanted:
                self.server.tickets.ask(wanted)
            given = self._given()
            if isinstance(given, int):
                self.server.note(self.worker, "ticket")
            self.server.changed.notify_all()
            trained = self.server.tickets.round
        self.pair.send(header(given if isinstance(given, int) else -1 - MEETINGS.index(given), trained))

    def _given(self) -> int | Meeting:
        given = self.server.tickets.give(self.worker)
        while given is None:
            self.server.changed.wait()
            given = self.server.tickets.give(self.worker)
        return given

    def _meet(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:
            server.met.add(self.worker)
            server.open_the_room()
            server.changed.notify_all()
            server.changed.wait_for(lambda: self.worker not in server.met)
        self.pair.send(header(0))

    def _where(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:
            server.changed.wait_for(lambda: not server.present or server.training)
            stretch = server.tickets.stretch
            if server.present and stretch is not None:
                server.present.add(self.worker)
                numbers = (stretch.serial, stretch.epoch, stretch.first_round, stretch.end_round, stretch.step)
            else:
                numbers = (-1,)
        self.pair.send(header(*numbers))

    def _save(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:  # a meeting: nobody else asks anything
            files.save(server.the_piece(), server.run_dir, int(asked[1]), server.index)
        self.pair.send(header(0))

    def _measure(self, asked: list[float]) -> None:
        with self.server.changed:
            piece = self.server.the_piece()
            histogram = torch.tensor(sorted(piece.staleness.items()), dtype=torch.int64).reshape(-1, 2)
            load = piece.load
            told = header(load.pulls, load.pushes, load.busy_seconds, piece.version, len(histogram))
        self.pair.send(told)
        self.pair.send(histogram)
