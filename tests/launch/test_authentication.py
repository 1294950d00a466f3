"""Handshake of a run's processes, and what strangers at a listening socket can do: nothing."""

import fcntl
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from garbage import GARBAGE
from runs import PATIENCE_S, is_closed, wait_until

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.handshake import AuthenticationError, Connector, Listener, new_secret
from leyden.trainer.base.printable import printable
from leyden.trainer.launch import authentication
from leyden.trainer.launch.authentication import MAX_PENDING, AuthenticatedListener, authenticate
from leyden.trainer.launch.store import listening_socket
from leyden.trainer.launch.worker_group import WorkerSpec
from leyden.trainer.runs.secret import shared_secret

SECRET = new_secret()


def test_both_sides_prove_that_they_know_the_secret() -> None:
    connector, listener = Connector(SECRET, "a"), Listener(SECRET, "a")
    listener.verify(connector.proof(listener.answer(connector.hello)))


@pytest.mark.parametrize(
    ("connector", "listener"),
    [
        (Connector(new_secret(), "a"), Listener(SECRET, "a")),
        (Connector(SECRET, "a"), Listener(SECRET, "b")),
    ],
    ids=["secret", "protocol"],
)
def test_neither_side_takes_a_stranger(connector: Connector, listener: Listener) -> None:
    answer = listener.answer(connector.hello)
    with pytest.raises(AuthenticationError):
        connector.proof(answer)
    with pytest.raises(AuthenticationError):
        listener.verify(bytes(32))


def test_a_replayed_or_reflected_proof_is_none() -> None:
    connector, listener = Connector(SECRET, "a"), Listener(SECRET, "a")
    answer = listener.answer(connector.hello)
    recorded = connector.proof(answer)
    later = Listener(SECRET, "a")
    later.answer(connector.hello)
    with pytest.raises(AuthenticationError):
        later.verify(recorded)
    with pytest.raises(AuthenticationError):
        Connector(SECRET, "a").proof(answer)  # a listener that replays its answer
    with pytest.raises(AuthenticationError):
        listener.verify(answer[32:])  # its own proof


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[AuthenticatedListener]:
    monkeypatch.setattr(authentication, "PENDING_S", 60)
    listener = AuthenticatedListener(listening_socket("127.0.0.1"), SECRET, "rendezvous")
    yield listener
    listener.close()


def _peer(listener: AuthenticatedListener, secret: bytes = SECRET, descriptor: int = 0) -> Callable[[], socket.socket]:
    """Start to authenticate. Returns what waits for the connection, or raises as `authenticate`.

    Args:
        descriptor: the least number of the connection's.
    """
    with socket.create_connection(("127.0.0.1", listener.port)) as low:
        connection = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, descriptor))
    raised: list[Exception] = []

    def work() -> None:
        try:
            authenticate(connection, secret, "rendezvous", 20)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> socket.socket:
        thread.join(PATIENCE_S)
        if raised:
            connection.close()
            raise raised[0]
        return connection

    return result


def _accepted(listener: AuthenticatedListener) -> socket.socket:
    found: list[socket.socket] = []
    wait_until(lambda: bool(found.extend(listener.accept()) or found))
    return found[0]


def _stranger(listener: AuthenticatedListener, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", listener.port))
    with suppress(OSError):
        connection.sendall(data)
    return connection


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_at_once(listener: AuthenticatedListener, data: bytes) -> None:
    with _stranger(listener, data) as stranger:
        wait_until(lambda: not listener.accept() and is_closed(stranger))


def test_what_follows_the_proof_is_left_to_the_protocol(listener: AuthenticatedListener) -> None:
    peer = _peer(listener)
    with _accepted(listener) as accepted, peer() as connection:
        connection.sendall(b"first")
        accepted.setblocking(True)
        assert accepted.recv(100) == b"first"


def test_a_process_with_many_open_files_authenticates(listener: AuthenticatedListener) -> None:
    """`select` takes no descriptor from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    try:
        peer = _peer(listener, descriptor=1500)
        with _accepted(listener), peer() as connection:
            assert connection.fileno() >= 1500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_wrong_secret_is_noticed_on_both_sides(
    listener: AuthenticatedListener, capfd: pytest.CaptureFixture[str]
) -> None:
    peer = _peer(listener, new_secret())
    wait_until(lambda: not listener.accept() and bool(listener._pending) and listener._pending[0].answered)
    with pytest.raises(AuthenticationError):
        peer()
    wait_until(lambda: not listener.accept() and not listener._pending)
    assert "does it have another secret?" in capfd.readouterr().err
    listener._refused.clear()
    connector = Connector(SECRET, "rendezvous")
    with _stranger(listener, connector.hello + bytes(32)) as stranger:
        wait_until(lambda: not listener.accept() and is_closed(stranger))
    assert "was closed: wrong secret" in capfd.readouterr().err


def test_a_hundred_idle_connections_keep_no_peer_out(
    listener: AuthenticatedListener, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = [_stranger(listener, b"") for _ in range(100)]
    listener.accept()
    assert len(listener._pending) == MAX_PENDING
    peer = _peer(listener)
    with _accepted(listener), peer():
        pass
    monkeypatch.setattr(authentication, "PENDING_S", 0.0)
    wait_until(lambda: not listener.accept() and all(map(is_closed, idle)))
    for connection in idle:
        connection.close()
    listener.close()
    errors = capfd.readouterr().err.splitlines()
    assert errors[0].startswith("rendezvous: a connection from 127.0.0.1 was closed: more than 64 connections")
    assert errors[1:] == ["rendezvous: 100 connections were refused"]


def test_a_flood_between_hello_and_proof_keeps_no_peer_out(listener: AuthenticatedListener) -> None:
    connector = Connector(SECRET, "rendezvous")
    with socket.create_connection(("127.0.0.1", listener.port)) as peer:
        peer.sendall(connector.hello)
        wait_until(lambda: not listener.accept() and listener._pending[0].answered)
        flood = [_stranger(listener, b"") for _ in range(200)]
        assert not listener.accept()
        peer.settimeout(20)
        peer.sendall(connector.proof(peer.recv(64, socket.MSG_WAITALL)))
        _accepted(listener).close()
    for connection in flood:
        connection.close()


def test_the_secret_is_one_for_all_and_nobody_elses(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(shared_secret(tmp_path))) for _ in range(20)]
    previous = os.umask(0)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.umask(previous)
    assert len(set(found)) == 1
    assert len(found) == 20
    assert len(found[0]) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["readable", "short", "no hex", "link", "folder", "FIFO"])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.trainer.runs.secret._VISIBLE_S", 0.1)
    path, other = tmp_path / "secret", tmp_path / "other"
    os.close(os.open(other, os.O_CREAT | os.O_WRONLY, 0o600))
    other.write_text({"short": "ab\n", "no hex": "x" * 64 + "\n"}.get(kind, "00" * 32 + "\n"))
    if kind == "link":
        path.symlink_to(other)
    elif kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path, 0o600)
    else:
        other.rename(path)
        path.chmod(0o644 if kind == "readable" else 0o600)
    with pytest.raises(ConfigError, match="remove the file"):
        shared_secret(tmp_path)


def test_a_job_does_not_show_its_secret(tmp_path: Path) -> None:
    from machines import topology_config

    job = WorkerSpec(topology_config(), tmp_path, "train", None)
    assert "secret" not in repr(job)


def test_text_of_peers_has_nothing_that_a_terminal_obeys() -> None:
    assert printable("a\x1b]0;owned\x07b\x9b2J\r\u202ec\td\ne\x7fé漢") == "a]0;ownedb2Jc\td\neé漢"
