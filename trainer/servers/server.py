"""A parameter server: one process that holds a piece of the parameters, and, the first one, the counter of tickets."""

import threading
import time
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..targets import locate
from .conversation import Conversation
from .pieces import Piece
from .tickets import Tickets
from .wire import Pair, open_store

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
        self.coming: set[int] = set()
        """Who was started again and has not left since: to be told where the others are, or that they are done."""
        self.over = False
        self.met: set[int] = set()
        """Who waits for the others."""
        self.more_to_train = False
        """Whether those who had met last were sent back to what a lost worker had been at."""
        self.error: BaseException | None = None

    def run(self) -> None:
        for worker in range(self.workers):
            self._listen_to(worker, 0)
        if self.config.elastic:
            threading.Thread(target=self._expect_newcomers, daemon=True).start()
        with self.changed:
            self.changed.wait_for(
                lambda: self.error is not None or self.over or not (self.config.elastic or self.present)
            )
        if self.recording is not None:
            self.recording.close()
        if self.error is not None:
            raise self.error

    def _listen_to(self, worker: int, incarnation: int) -> None:
        threading.Thread(target=self._guard, args=(worker, incarnation), daemon=True).start()

    def _expect_newcomers(self) -> None:
        """The agent says in the store which workers have died, and which it has started again, until nobody is left."""
        store, lost = open_store(), dict.fromkeys(range(self.workers), -1)
        while not self.over:
            time.sleep(_LOOK_EVERY_S)
            for worker in range(self.workers):
                gone = _number(store, f"leyden/worker/{worker}/gone")
                if gone > lost[worker]:
                    lost[worker] = gone
                    self._without(worker, gone)
                newest = _number(store, f"leyden/worker/{worker}/incarnation")
                if newest > self.incarnations[worker]:
                    self.incarnations[worker] = newest
                    self.coming.add(worker)
                    self._listen_to(worker, newest)
            with self.changed:
                self.over = not (self.present or self.coming)
                self.changed.notify_all()

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
            self.coming.discard(worker)
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
            self.more_to_train = bool(self.tickets.returned)
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
