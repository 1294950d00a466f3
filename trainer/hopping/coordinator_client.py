"""Client of the coordinator in a worker, served by a thread of its own: the worker trains meanwhile."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait

from ..base.handshake import inherited_secret
from ..launch.authentication import authenticate
from ..launch.channel import MessageChannel
from .messages import (
    DONE,
    FROM_COORDINATOR,
    LOST,
    CoordinatorMessage,
    CopySnapshot,
    DropSnapshot,
    EndWorkers,
    SendSnapshot,
    SnapshotCopied,
    StartSubEpoch,
    WorkerLeaving,
    WorkerMessage,
    WorkerReady,
)
from .rendezvous import PROTOCOL
from .transport import IncomingSnapshot, Transport

_POLL_S = 0.5
_CONNECT_S = 300.0


@dataclass(frozen=True)
class SubEpochOrder:
    """A sub-epoch to execute, and its model, which may still be on its way."""

    request: StartSubEpoch
    incoming: IncomingSnapshot | None
    """Snapshot that is on its way; None if the model comes from a checkpoint, or is new."""


class CoordinatorClient:
    """Connection to the coordinator: queue of sub-epochs to execute, and messages to it.

    Args:
        address: HOST:PORT of the coordinator.
        on_stop: called when the run ends before all is done.

    Raises:
        OSError: it cannot be reached.
        AuthenticationError: whoever listens there does not know the run's secret.
    """

    def __init__(self, address: str, transport: Transport, on_stop: Callable[[], None]):
        self._channel = MessageChannel(_connect(address), FROM_COORDINATOR)
        self._transport = transport
        self._orders: deque[SubEpochOrder] = deque()
        self._outgoing: deque[WorkerMessage] = deque()
        self._changed = threading.Condition()
        self._read, self._wake = os.pipe()
        self.end: EndWorkers | None = None
        """The coordinator's last message."""
        self._on_stop = on_stop
        self.send(WorkerReady(transport.rank))
        threading.Thread(target=self._run, name="leyden-coordinator-client", daemon=True).start()

    def send(self, message: WorkerMessage) -> None:
        """Queue a message."""
        self._outgoing.append(message)
        os.write(self._wake, b".")

    def order(self, timeout: float) -> SubEpochOrder | None:
        """Next sub-epoch; None: there was none within the timeout, or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self.end is not None, timeout)
            return self._orders.popleft() if self._orders and self.end is None else None

    def finish(self) -> None:
        """Send what is queued before this process exits."""
        self.send(WorkerLeaving())
        with self._changed:
            self._changed.wait_for(lambda: not self._outgoing or self._channel.closed, 10)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._channel.close()
            if self.end is None:
                self._handle(EndWorkers(LOST, None))

    def _serve(self) -> None:
        while not self._channel.closed:
            if self._read in wait([self._channel.fileno(), self._read], _POLL_S):
                os.read(self._read, 4096)
            while self._outgoing:
                self._channel.send(self._outgoing[0])
                self._outgoing.popleft()
            self._channel.keep_alive()
            for message in self._channel.receive():
                self._handle(message)
            with self._changed:
                self._changed.notify_all()

    def _handle(self, message: CoordinatorMessage) -> None:
        match message:
            case StartSubEpoch():
                self._enqueue(message)
            case SendSnapshot():
                self._transport.send(message.number, message.to, message.tag)
            case CopySnapshot(snapshot, source, tag):
                copied = SnapshotCopied(snapshot.trial, snapshot.number)
                self._transport.receive_copy(snapshot, source, tag, lambda: self.send(copied))
            case DropSnapshot():
                self._transport.drop(message.number)
            case EndWorkers():
                with self._changed:
                    self.end = message
                    self._changed.notify_all()
                if message.reason != DONE:
                    self._on_stop()

    def _enqueue(self, request: StartSubEpoch) -> None:
        # received now, while another model trains: the hop costs no time of its own
        incoming = None
        if request.snapshot is not None:
            incoming = self._transport.receive(request.snapshot, request.source, request.number)
        with self._changed:
            self._orders.append(SubEpochOrder(request, incoming))
            self._changed.notify_all()


def _connect(address: str) -> socket.socket:
    """An authenticated connection to the coordinator, which may still import."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _CONNECT_S
    while True:
        connection = socket.create_connection((host, int(port)), timeout=60)
        try:
            authenticate(connection, inherited_secret(), PROTOCOL, end - time.monotonic())
            return connection
        except OSError:  # closed, where too many others were connecting
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(_POLL_S)
