"""Messages between processes: one JSON object a line over a TCP connection on which neither side ever blocks."""

import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic

from ..base.printable import printable
from .codec import Message, MessageCodec, MessageError, encode

KEEPALIVE_INTERVAL_S = 1.0
"""The longest time between two messages of one side."""
KEEPALIVE_TIMEOUT_S = 15.0
"""Silence after which the other side counts as lost. An agent on a loaded node may not run for seconds."""
_KEEPALIVE = "KeepAlive"
_MAX_LINE_BYTES = 16 << 20
"""Limit for a line that does not end: no peer may fill the memory."""
_MAX_DEPTH = 16
_MAX_DIGITS = 32
_MAX_VALUES = 300_000
"""Values of a message, commas in texts counted as well: parsed, each takes up to a hundred bytes."""
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


class MessageChannel(Generic[Message]):
    """One end of a connection.

    Attributes:
        closed: by either side.
        error: why this side closed it, where the other sent what is no message; else "".
        clock_offset: seconds that this machine's clock is ahead of the other's, at most by the time of the fastest
            message.

    Args:
        incoming: of the messages that the other side may send. Any other closes this connection, and nothing else.
    """

    def __init__(self, connection: socket.socket, incoming: MessageCodec[Message]):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._codec = incoming
        self._in = bytearray()
        self._out = bytearray()
        self._last_read = self._last_sent = time.monotonic()
        self._silence_s = 0.0
        self.closed = False
        self.error = ""
        self.clock_offset: float = float("inf")

    def fileno(self) -> int:
        """Descriptor, to wait for what arrives."""
        return self._connection.fileno()

    @property
    def lost(self) -> bool:
        """Whether it is closed, or the other side has been silent for too long."""
        return self.closed or self._silence_s > KEEPALIVE_TIMEOUT_S

    def send(self, message: object) -> None:
        """Send a dataclass as soon as the connection takes it; never blocks."""
        self._send(encode(message))

    def keep_alive(self) -> None:
        """Send what is queued, and a keep-alive where nothing was sent for KEEPALIVE_INTERVAL_S."""
        if time.monotonic() - self._last_sent > KEEPALIVE_INTERVAL_S:
            self._send({"type": _KEEPALIVE})
        self._flush()

    def receive(self) -> list[Message]:
        """Messages that have arrived since the last call; never blocks."""
        self._read()
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        self._measure_silence(heard=bool(lines))
        try:
            received = [self._parse_line(line) for line in lines]
            messages = [self._codec.decode(data) for data in received if data["type"] != _KEEPALIVE]
        except MessageError as error:
            self.error = str(error)
            self.close()
            return []
        return messages

    def _measure_silence(self, heard: bool) -> None:
        now = time.monotonic()
        # this process itself may have been stopped, as all of a job are that Slurm suspends
        unread_s = min(now - self._last_read, KEEPALIVE_INTERVAL_S)
        self._silence_s = 0.0 if heard else self._silence_s + unread_s
        self._last_read = now

    def finish(self, seconds: float = 2.0) -> None:
        """Close once the other side has read what was sent: closing at once could discard it."""
        end = time.monotonic() + seconds
        while not self.closed and time.monotonic() < end:
            self._flush()
            if not self._out:
                self._shut()
            self._read()
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _send(self, data: dict[str, Any]) -> None:
        self._out += json.dumps({**data, "sent_at": time.time()}).encode() + b"\n"
        self._last_sent = time.monotonic()
        self._flush()

    def _parse_line(self, line: bytes) -> dict[str, Any]:
        try:
            data = _values(line)
            self.clock_offset = min(self.clock_offset, time.time() - float(data["sent_at"]))
            return {**data, "type": data["type"]}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise MessageError(f"not a message: {line[:80]!r}") from error

    def _shut(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        while not self.closed:
            try:
                data = self._connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._in += data
            if not data or len(self._in) > _MAX_LINE_BYTES:
                self.close()

    def _flush(self) -> None:
        while self._out and not self.closed:
            try:
                sent = self._connection.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                # what the other side sent before it closed may still be read
                self._out.clear()
                return
            del self._out[:sent]


def _values(line: bytes) -> Any:
    """The values of a line of JSON, without characters that a terminal would obey.

    Raises:
        ValueError: it is no JSON, or beyond the limits of values, depth and digits.
    """
    brackets = line.count(b"[") + line.count(b"{")
    if brackets + line.count(b",") > _MAX_VALUES:
        raise ValueError(f"more than {_MAX_VALUES:,} values")
    # a line with few brackets cannot be deep: most need no second look
    if brackets > _MAX_DEPTH and _depth(line) > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    data = json.loads(line, parse_int=_number(int), parse_float=_number(float))
    # the sender escapes what is not ASCII, and so every control character
    return _printable(data) if b"\\u" in line or not line.isascii() or b"\x7f" in line else data


def _depth(line: bytes) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(line):
        first = found[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _number(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse_float(text: str) -> float:
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits")
        return kind(text)

    return parse_float


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
