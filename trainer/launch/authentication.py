"""Connections between processes of one run: each side proves that it knows the run's secret before anything else."""

import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from ..base.handshake import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, AuthenticationError, Connector, Listener

MAX_PENDING = 64
"""Connections that have not authenticated; the oldest is closed for one more."""
PENDING_S = 5.0
"""Time for a connection to authenticate."""
_ACCEPTED_AT_ONCE = 256
_REPORTED_ADDRESSES = 16
_POLL_S = 0.1


def authenticate(
    connection: socket.socket, secret: bytes, protocol: str, timeout_s: float,
    interrupted: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """The connecting side's part.

    Args:
        timeout_s: how long the other side may be busy, importing for instance.
        interrupted: polled; true: give up.

    Raises:
        AuthenticationError: the other side does not know the secret.
        OSError: it has closed the connection, was silent for too long, or this side was interrupted.
    """
    connector = Connector(secret, protocol)
    connection.sendall(connector.hello)
    answer, end = b"", time.monotonic() + timeout_s
    while len(answer) < ANSWER_BYTES:
        if interrupted() or time.monotonic() > end:
            raise TimeoutError("no answer to the handshake")
        if wait([connection], _POLL_S):
            data = connection.recv(ANSWER_BYTES - len(answer))
            if not data:
                raise ConnectionResetError("closed before the handshake")
            answer += data
    connection.sendall(connector.proof(answer))


@dataclass
class _Pending:
    """A connection that has not authenticated."""

    connection: socket.socket
    address: str
    listener: Listener
    received: bytearray = field(default_factory=bytearray)
    answered: bool = False
    since: float = field(default_factory=time.monotonic)

    def proceed(self) -> bool:
        """Handle what has arrived; never blocks.

        Raises:
            AuthenticationError: the other side does not know the secret.
            OSError: it has closed the connection.
        """
        while True:
            wanted = PROOF_BYTES if self.answered else HELLO_BYTES
            try:
                # no byte more: what follows the proof is the protocol's
                data = self.connection.recv(wanted - len(self.received))
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError("closed before the handshake")
            self.received += data
            if not self.answered:
                self.listener.check_start(bytes(self.received))
            if len(self.received) < wanted:
                continue
            message, self.received = bytes(self.received), bytearray()
            if self.answered:
                self.listener.verify(message)
                return True
            self.connection.send(self.listener.answer(message))
            self.answered = True


class AuthenticatedListener:
    """A listening socket that gives connections of processes that know the secret.

    Args:
        listening: closed with this.
        protocol: of the connections; for the user, too.
    """

    def __init__(self, listening: socket.socket, secret: bytes, protocol: str):
        listening.setblocking(False)
        self._listening = listening
        self._secret, self._protocol = secret, protocol
        self._pending: list[_Pending] = []
        self._refused: Counter[str] = Counter()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def wait(self, others: Iterable[int], seconds: float) -> None:
        """Wait until a connection needs `accept`, or one of other file descriptors can be read."""
        watched = [self._listening.fileno(), *(one.connection.fileno() for one in self._pending), *others]
        poll = select.poll()
        for descriptor in watched:
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * seconds)

    def accept(self) -> list[socket.socket]:
        """Connections that have authenticated since the last call; never blocks."""
        authenticated: list[socket.socket] = []
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except OSError:
                break
            connection.setblocking(False)
            if len(self._pending) == MAX_PENDING:
                authenticated += self._proceed_all()
                self._make_room()
            self._pending.append(_Pending(connection, str(address[0]), Listener(self._secret, self._protocol)))
        return [*authenticated, *self._proceed_all()]

    def _proceed_all(self) -> list[socket.socket]:
        return [one.connection for one in list(self._pending) if self._proceed(one)]

    def _make_room(self) -> None:
        """Close the oldest connection if there are too many; first one that has not said hello: a peer does at once."""
        if len(self._pending) == MAX_PENDING:
            oldest = next((one for one in self._pending if not one.answered), self._pending[0])
            self._refuse(oldest, f"more than {MAX_PENDING} connections without a handshake")

    def _proceed(self, one: _Pending) -> bool:
        """Handle what has arrived on a connection. Returns whether it is authenticated."""
        try:
            if one.proceed():
                self._pending.remove(one)
                return True
        except AuthenticationError as error:
            self._refuse(one, str(error))
            return False
        except OSError:
            if one.answered:
                self._refuse(one, "it closed at our proof: does it have another secret?")
            else:  # a port scanner, or a peer that has ended
                self._drop(one)
            return False
        if time.monotonic() - one.since > PENDING_S:
            self._refuse(one, f"no handshake within {PENDING_S:g} s")
        return False

    def _refuse(self, one: _Pending, reason: str) -> None:
        self._drop(one)
        self._report(one.address, reason)

    def _drop(self, one: _Pending) -> None:
        self._pending.remove(one)
        one.connection.close()

    def _report(self, address: str, reason: str) -> None:
        """Count a refusal; the first of an address is reported."""
        known = address if address in self._refused or len(self._refused) < _REPORTED_ADDRESSES else "others"
        self._refused[known] += 1
        if self._refused[known] == 1:
            text = f"{self._protocol}: a connection from {address} was closed: {reason}"
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the socket and what has not authenticated. Reports how many connections were refused."""
        self._listening.close()
        for one in list(self._pending):
            self._drop(one)
        total, self._refused = sum(self._refused.values()), Counter()
        if total > 1:
            print(f"{self._protocol}: {total} connections were refused", file=sys.stderr, flush=True)
