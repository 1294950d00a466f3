"""What strangers send to a listening socket."""

GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "brackets": b"[" * 100_000,
    "400 digits": b'{"sent_at": ' + b"9" * 400 + b"}\n",
    "the former hello": b'{"say":"here","rank":0}\n',
    "a join request": b'{"type": "JoinRequest", "node": {"host": "h", "config": "", "versions": {}}, "sent_at": 1.0}\n',
    "a ready worker": b'{"type": "WorkerReady", "rank": 0, "sent_at": 1.0}\n',
    "a signal": b'{"type": "AgentSignal", "number": 15, "repeated": true, "sent_at": 1.0}\n',
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "zeros": bytes(10_000),
    "ones": b"\xff" * 10_000,
    "newlines": b"\n" * 10_000,
    "a header of a server": bytes(16 * 8),
    "another version": b"leyden/9" + bytes(32),
    "a wrong proof": b"leyden/1" + bytes(64),
    "a long wrong proof": b"leyden/1" + bytes(100_000),
    "escapes": b"\x1b]0;owned\x07\x1b[2J\n",
    "half a hello, then more": b"leyden/1" + b"x" * 31 + b"\n" + b"y" * 40,
    "UTF-16": "{}".encode("utf-16"),
}
"""What strangers send, each refused at once."""
