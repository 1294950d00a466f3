"""One side of each protocol, which a peer who knows the run's secret sends a hostile message to.

`python -m hostile_peer NAME` reads it as the agent, the coordinator, a worker or a server does, and exits with 2 and
the reason where it is refused.
"""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import torch
from hostile_entries import Entry

from leyden.trainer.base.handshake import AuthenticationError, new_secret
from leyden.trainer.core.communication import plain_values
from leyden.trainer.hopping.messages import FROM_COORDINATOR, FROM_WORKER
from leyden.trainer.launch.authentication import AuthenticatedListener, authenticate
from leyden.trainer.launch.channel import MessageChannel
from leyden.trainer.launch.codec import MessageCodec
from leyden.trainer.launch.messages import FROM_FOLLOWER, FROM_LEADER
from leyden.trainer.launch.store import listening_socket
from leyden.trainer.strategies.param_server import protocol

CODECS: Mapping[str, MessageCodec] = {
    "leader": FROM_FOLLOWER,
    "follower": FROM_LEADER,
    "coordinator": FROM_WORKER,
    "worker": FROM_COORDINATOR,
}
HARMLESS = b'{"type": "KeepAlive", "sent_at": 1.0}\n'
_NODE = b'{"host": "h", "config": "", "versions": {}}'
LINES: Mapping[str, bytes] = {
    "no JSON": b"touch canary\n",
    "half an object": b'{"type": "GroupFailing", \n',
    "no text": b"\xff\xfe\x00\n",
    "100,000 lists in each other": b"[" * 100_000 + b"\n",
    "100,000 objects in each other": b'{"a":' * 100_000 + b"\n",
    "17 lists in each other": b'{"type": "GroupFailing", "sent_at": 1.0, "a": ' + b"[" * 17 + b"]" * 17 + b"}\n",
    "a number of 400 digits": b'{"type": "GroupFailing", "sent_at": ' + b"9" * 400 + b"}\n",
    "a number of 4 MB": b'{"type": "GroupFailing", "sent_at": ' + b"9" * (4 << 20) + b"}\n",
    "1e999": b'{"type": 1e999, "sent_at": 1e999}\n',
    "NaN": b'{"type": NaN, "sent_at": NaN}\n',
    "a time that is a list": b'{"type": "GroupFailing", "sent_at": []}\n',
    "no time": b'{"type": "GroupFailing"}\n',
    "no kind": b'{"sent_at": 1.0}\n',
    "a list for a kind": b'{"type": ["GroupFailing"], "sent_at": 1.0}\n',
    "a kind that is a class": b'{"type": "__class__", "sent_at": 1.0}\n',
    "an unknown kind": b'{"type": "Execute", "command": "touch canary", "sent_at": 1.0}\n',
    "a text of escapes for a kind": b'{"type": "\\u001b]0;owned\\u0007\\u001b[2J", "sent_at": 1.0}\n',
    "surrogates": b'{"type": "\\ud800\\udfff\\ud800", "sent_at": 1.0}\n',
    "5 MB of lists": b'{"type": "GroupFailing", "sent_at": 1.0, "a": [' + b"[]," * (5 << 20) + b"[]]}\n",
    "17 MB without an end": b"x" * (17 << 20),
    "the same key twice": b'{"type": "GroupFailing", "type": "Execute", "sent_at": 1.0}\n',
    "a request with a wrong node": b'{"type": "JoinRequest", "node": [], "sent_at": 1.0}\n',
    "a signal of another number": b'{"type": "AgentSignal", "number": 999, "repeated": true, "sent_at": 1.0}\n',
    "a rank that is a text": b'{"type": "WorkerReady", "rank": "touch canary", "sent_at": 1.0}\n',
    "metrics that are texts": b'{"type": "SubEpochFailed", "number": 1, "log": [{"metrics": "x"}], "sent_at": 1.0}\n',
    "a start without its fields": b'{"type": "StartWorkers", "sent_at": 1.0}\n',
    "an end for no reason": b'{"type": "EndWorkers", "reason": "because", "save": null, "sent_at": 1.0}\n',
    "a snapshot of negative size": b'{"type": "SendSnapshot", "number": [], "to": -1, "tag": "x", "sent_at": 1.0}\n',
}
_JSON: Mapping[str, bytes] = {
    "deep": b"[" * 100_000,
    "no JSON": b"touch canary",
    "no text": b"\xff\xfe",
    "an unknown dtype": b'{"__tensor__": "load", "shape": [1], "data": ""}',
    "a shape that is none": b'{"__tensor__": "float32", "shape": "x", "data": "AAAAAA=="}',
    "no data": b'{"__tensor__": "float32"}',
    "a huge shape": b'{"__tensor__": "float32", "shape": [9223372036854775807, 9], "data": "AAAAAA=="}',
    "data that is none": b'{"__tensor__": "float32", "shape": [1], "data": 5}',
    "half a number": b'{"__tensor__": "float64", "shape": [1], "data": "AAAA"}',
}
_KINDS = {kind.__name__: number for number, kind in protocol._KINDS.items()}
_HEADERS: Mapping[str, list[float]] = {
    "kind 0": [0],
    "kind NaN": [float("nan")],
    "kind 1e300": [1e300],
    "a reply": [_KINDS["Done"]],
    "elements below 0": [_KINDS["Start"], -1, 0, 1],
    "infinite elements": [_KINDS["Start"], float("inf"), 0, 1],
    "an unknown dtype": [_KINDS["Start"], 1, 9, 1],
    "15 rates": [_KINDS["PushRequest"], 15],
    "rates without end": [_KINDS["PushRequest"], 2**53],
    "half a work range": [_KINDS["Begin"], 1.5],
    "numbers after the last field": [_KINDS["Leave"], 0, 1],
    "an unknown reason": [_KINDS["Draw"], 99, 0],
}


def messages() -> Iterator[Entry]:
    for reader, names in {
        "leader": list(LINES),
        "follower": list(LINES)[:8],
        "coordinator": list(LINES)[-8:],
        "worker": list(LINES)[-8:],
    }.items():
        for name in names:
            yield _entry(reader, name)
    yield from (_entry("peer", name) for name in _JSON)
    yield from (_entry("server", name) for name in _HEADERS)


def _entry(reader: str, name: str) -> Entry:
    return Entry(
        "message", f"{name}, to the {reader}", ("message", f"{reader}: {name}"), ["refused: "], harmless="message"
    )


def meet(name: str) -> int:
    """Receive one message. Returns 0 if it was taken; 2 if it was refused, with the reason printed."""
    reader, _, kind = name.partition(": ")
    if name == "harmless":
        return _received(CODECS["leader"], HARMLESS)
    if reader in CODECS:
        return _received(CODECS[reader], LINES[kind])
    if reader == "peer":
        return _refused(lambda: plain_values.decode(_JSON[kind]), ValueError)
    header = torch.tensor([*_HEADERS[kind], *[0.0] * 16][:16], dtype=torch.float64)
    return _refused(lambda: protocol.decode(header, protocol.Request.__args__), protocol.ProtocolError)


def _refused(decode: Callable[[], object], error: type[Exception]) -> int:
    try:
        decode()
    except error as reason:
        print(f"refused: {reason}")
        return 2
    return 0


def _received(codec: MessageCodec, data: bytes) -> int:
    """Send data over a connection whose other end has proved that it knows the secret."""
    secret = new_secret()
    listener = AuthenticatedListener(listening_socket("127.0.0.1"), secret, "corpus")
    thread = threading.Thread(target=_send, args=(listener.port, secret, data), daemon=True)
    thread.start()
    with closing(listener):
        accepted = []
        while not accepted:
            accepted = listener.accept()
        channel = MessageChannel(accepted[0], codec)
        while not channel.closed:
            for message in channel.receive():
                print(f"taken: {message}")
                return 0
            if data == HARMLESS and not thread.is_alive():
                return 0
    print(f"refused: {channel.error or 'closed'}")
    return 2


def _send(port: int, secret: bytes, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            authenticate(connection, secret, "corpus", 20)
            connection.sendall(data)
        except (OSError, AuthenticationError):
            return  # closed: it was refused


if __name__ == "__main__":
    sys.exit(meet(sys.argv[1]))
