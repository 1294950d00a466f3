"""Parameter server: a process that holds a shard of the parameters, and, the first one, the work queue."""

import threading
import time
from pathlib import Path
from typing import Any

import torch

from ...base.handshake import AuthenticationError
from ...base.log import log
from ...config.schema import Config
from ...core.communication.tcp_store import open_store
from .connection import ServerConnection
from .handler import RequestHandler
from .protocol import ProtocolError
from .shared_state import SharedState

_POLL_INTERVAL_S = 0.2
_CLOSE_S = 5.0
"""Time for a handler whose worker has left to close its connection."""


def serve(config: Config, run_dir: Path, index: int, records: bool = True) -> None:
    """Serve all workers until the last has left.

    Args:
        records: whether `strategy.execution.record` counts: nothing is written into a run that is evaluated.

    Raises:
        RuntimeError: a worker has died without leaving.
        ProtocolError: a worker has sent an unknown or malformed request.
        AuthenticationError: who took a worker's place does not know the run's secret.
        NotFiniteValue: a push that is not finite.
        ValueError: a checkpoint's file is missing or damaged.
    """
    torch.set_num_threads(1)  # a server shares its node with workers, and an update is limited by memory anyway
    Server(config, run_dir, index, records).run()


class Server(SharedState):
    """Handles each worker in a thread, and removes and adds workers as they die and restart."""

    def run(self) -> None:
        self._handlers: list[threading.Thread] = []
        for worker in range(self.workers):
            self._start_handler(worker, 0)
        if self.config.elastic:
            threading.Thread(target=self._watch_membership, daemon=True).start()
        with self.changed:
            self.changed.wait_for(
                lambda: self.error is not None or self.finished or not (self.config.elastic or self.present)
            )
        if self.event_log is not None:
            self.event_log.close()
        if self.error is not None:
            raise self.error
        if not self.config.elastic:
            for handler in self._handlers:
                handler.join(_CLOSE_S)  # a connection that is open when the interpreter shuts down aborts it

    def _start_handler(self, worker: int, incarnation: int) -> None:
        # a thread a worker: gloo has no select over groups, and its blocking receive releases the GIL
        handler = threading.Thread(target=self._handle, args=(worker, incarnation), daemon=True)
        self._handlers.append(handler)
        handler.start()

    def _watch_membership(self) -> None:
        """Poll the store, where the agent notes which workers have died and restarted, until none is left."""
        store, removed = open_store(), dict.fromkeys(range(self.workers), -1)
        while not self.finished:
            time.sleep(_POLL_INTERVAL_S)
            for worker in range(self.workers):
                died = _number(store, f"leyden/worker/{worker}/failed")
                if died > removed[worker]:
                    removed[worker] = died
                    self._remove(worker, died)
                newest = _number(store, f"leyden/worker/{worker}/incarnation")
                if newest > self.incarnations[worker]:
                    self.incarnations[worker] = newest
                    self.joining.add(worker)
                    self._start_handler(worker, newest)
            with self.changed:
                self.finished = not (self.present or self.joining)
                self.changed.notify_all()

    def _handle(self, worker: int, incarnation: int) -> None:
        try:
            connection = None
            try:
                connection = ServerConnection(self.index, worker, incarnation, at_server=True)
                RequestHandler(self, worker, connection).run()
            except (AuthenticationError, ProtocolError) as error:
                if not self.config.elastic:
                    raise
                log.warning("%s; its connection is closed", error)
            except RuntimeError:  # of gloo: the peer is dead
                if not self.config.elastic:
                    raise
            self._remove(worker, incarnation)
            # not where the run ends: the worker's own error would be reported first, as the cause
            if connection is not None:
                connection.close()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _remove(self, worker: int, incarnation: int) -> None:
        """A worker has left or died: no other waits for it, and its tickets are handed out again."""
        with self.changed:
            if incarnation != self.incarnations[worker]:
                return
            self.present.discard(worker)
            self.joining.discard(worker)
            self.queue.drop_worker(worker)
            if self.shard is not None:
                self.shard.drop_worker(worker)
            elif worker == 0:
                self.error = self.error or RuntimeError("worker 0 died before it had initialized the servers")
            self.release_barrier()
            self.changed.notify_all()


def _number(store: Any, key: str) -> int:
    return int(store.get(key)) if store.check([key]) else -1
