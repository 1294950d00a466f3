"""Messages between agents: one JSON object a line over a TCP connection that neither side ever waits for."""

import json
import socket
import time
from contextlib import suppress
from typing import Any

BEAT_S = 1.0
"""An agent that has nothing to say says so this often."""
SILENCE_S = 15.0
"""An agent that was not heard for so long is gone."""
_LONGEST = 16 << 20


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._in = bytearray()
        self._out = bytearray()
        self._heard = self._said = time.monotonic()
        self.closed = False
        self.clock_ahead: float = float("inf")
        """Seconds that this machine's clock is ahead of the other's, at most by the time of the fastest message."""

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    @property
    def gone(self) -> bool:
        return self.closed or time.monotonic() - self._heard > SILENCE_S

    def say(self, **message: Any) -> None:
        """Send a message as soon as the connection takes it."""
        self._out += json.dumps({**message, "at": time.time()}).encode() + b"\n"
        self._said = time.monotonic()
        self._flush()

    def beat(self) -> None:
        """Keep the other side sure that this one lives."""
        if time.monotonic() - self._said > BEAT_S:
            self.say(say="beat")
        self._flush()

    def hear(self) -> list[dict[str, Any]]:
        """What has come in since the last call."""
        self._receive()
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        if lines:
            self._heard = time.monotonic()
        try:
            messages = [_read(line) for line in lines]
        except (ValueError, TypeError, KeyError):  # whoever this is, it is no agent
            self.close()
            return []
        for message in messages:
            self.clock_ahead = min(self.clock_ahead, time.time() - message["at"])
        return [message for message in messages if message["say"] != "beat"]

    def finish(self, seconds: float = 2.0) -> None:
        """Close once the other side has read what was said: closing at once could take it away again."""
        end = time.monotonic() + seconds
        while not self.closed and time.monotonic() < end:
            self._flush()
            if not self._out:
                self._shut()
            self._receive()
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _shut(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        while not self.closed:
            try:
                data = self._connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._in += data
            if not data or len(self._in) > _LONGEST:
                self.close()

    def _flush(self) -> None:
        while self._out and not self.closed:
            try:
                sent = self._connection.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                # what it said before it went may still be read
                self._out.clear()
                return
            del self._out[:sent]


def _read(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    return {**message, "at": float(message["at"]), "say": str(message["say"])}
