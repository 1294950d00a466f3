"""One worker's requests to a server, answered in a thread of their own."""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from . import files
from .pieces import bounds, cut
from .tickets import Meeting, Stretch
from .wire import MEETINGS, RATES, TYPES, Ask, Pair, header

if TYPE_CHECKING:
    from .server import Server


class Conversation:
    """One worker's requests, answered one after the other."""

    def __init__(self, server: "Server", worker: int, pair: Pair):
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
            given = self._given(int(asked[2]))
            if isinstance(given, int):
                self.server.note(self.worker, "ticket")
            self.server.changed.notify_all()
            trained = self.server.tickets.round
        self.pair.send(header(given if isinstance(given, int) else -1 - MEETINGS.index(given), trained))

    def _given(self, trained: int) -> int | Meeting:
        given = self.server.tickets.give(self.worker, trained)
        while given is None:
            self.server.changed.wait()
            given = self.server.tickets.give(self.worker, trained)
        return given

    def _meet(self, asked: list[float]) -> None:
        server = self.server
        with server.changed:
            server.met.add(self.worker)
            server.open_the_room()
            server.changed.notify_all()
            server.changed.wait_for(lambda: self.worker not in server.met)
            more = server.more_to_train
        self.pair.send(header(more))

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
