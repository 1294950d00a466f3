"""Messages between agents, and connections to the leader that are no agent's."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import topology_config
from runs import PATIENCE_S, is_closed, wait_until

from leyden.trainer.base.handshake import new_secret
from leyden.trainer.launch import channel
from leyden.trainer.launch.authentication import AuthenticatedListener
from leyden.trainer.launch.channel import MessageChannel
from leyden.trainer.launch.codec import MessageError, encode
from leyden.trainer.launch.error_files import ErrorRecord
from leyden.trainer.launch.follower import FollowerAgent, connect
from leyden.trainer.launch.leader import LeaderAgent
from leyden.trainer.launch.messages import (
    FROM_FOLLOWER,
    FROM_LEADER,
    AgentSignal,
    AllWorkersFinished,
    EndRun,
    GroupFailing,
    JoinAccepted,
    JoinRequest,
    NodeResult,
    NodeStall,
    RunStall,
    StartWorkers,
    WorkersFinished,
)
from leyden.trainer.launch.process import ProcessExit
from leyden.trainer.launch.progress_report import ProgressReport
from leyden.trainer.launch.rendezvous import PROTOCOL, NodeInfo, Rendezvous, RendezvousError
from leyden.trainer.launch.roles import LocalNode, Role
from leyden.trainer.launch.signals import ReceivedSignals
from leyden.trainer.launch.store import listening_socket
from leyden.trainer.launch.worker_group import WorkerSpec

SECRET = new_secret()
INFO = NodeInfo("host", "config's hash", {"torch": "2.13"})
REPORT = ProgressReport(Role("worker", 1), "host", 7, 6, 9.5, "sleeping")
ERROR = ErrorRecord(2.0, "ValueError: why", True, "Traceback", problem={"key": "optimizer.lr", "value": -1.0})
EXITS = [ProcessExit(Role("worker", 0, 2), -9, 1.5, False, None), ProcessExit(Role("server", 0), 1, 2.5, True, ERROR)]
STRANGERS = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a truncated line": b'{"type": "JoinRequest", "no',
    "no object": b"5\n",
    "bytes": b"\xff\xfe\x00\n",
    "deep": b"[" * 100_000 + b"\n",
    "a huge number": b'{"type": "JoinRequest", "sent_at": ' + b"9" * 400 + b"}\n",
    "an unknown type": b'{"type": "Sudo", "sent_at": 1.0}\n',
    "no type": b'{"type": [], "sent_at": 1.0}\n',
    "the other side's": b'{"type": "EndRun", "code": 0, "text": "", "users_mistake": false, "sent_at": 1.0}\n',
    "a missing field": b'{"type": "JoinRequest", "sent_at": 1.0}\n',
    "a wrong field": b'{"type": "JoinRequest", "node": {"host": 1, "config": [], "versions": 2}, "sent_at": 1.0}\n',
    "not the first": b'{"type": "WorkersFinished", "sent_at": 1.0}\n',
}


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (FROM_FOLLOWER, JoinRequest(INFO)),
        (FROM_FOLLOWER, AgentSignal(signal.SIGTERM, repeated=True)),
        (FROM_FOLLOWER, GroupFailing()),
        (FROM_FOLLOWER, WorkersFinished()),
        (FROM_FOLLOWER, NodeStall([REPORT])),
        (FROM_FOLLOWER, NodeStall(None)),
        (FROM_FOLLOWER, NodeResult(True, EXITS)),
        (FROM_LEADER, JoinAccepted(1, "host")),
        (FROM_LEADER, StartWorkers(1, "resume", Path("/run/checkpoints/step=00000020.ckpt"), 40000, "why")),
        (FROM_LEADER, StartWorkers(0, "train", None, 40000, "")),
        (FROM_LEADER, AllWorkersFinished()),
        (FROM_LEADER, RunStall([REPORT, REPORT])),
        (FROM_LEADER, EndRun(75, "text", users_mistake=False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_is_decoded_as_it_was(codec, message) -> None:
    assert codec.decode(json.loads(json.dumps(encode(message)))) == message


@pytest.mark.parametrize(
    "changed", [{"number": 999}, {"number": "TERM"}, {"repeated": None}, {"type": "JoinAccepted"}, {"type": None}]
)
def test_a_malformed_message_is_an_error(changed: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        FROM_FOLLOWER.decode({**encode(AgentSignal(signal.SIGTERM, repeated=False)), **changed})


def test_only_the_time_in_which_this_side_reads_is_silence_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a minute for which Slurm has suspended the job."""
    now = 0.0
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    with listening_socket("127.0.0.1") as listening:
        other = MessageChannel(socket.create_connection(listening.getsockname()), FROM_FOLLOWER)
        one = MessageChannel(listening.accept()[0], FROM_FOLLOWER)
    with closing(one), closing(other):
        for now in (60.0, *(60 + tenth / 10 for tenth in range(1, 121)), 200.0):
            one.receive()
            assert not one.lost, now
        for now in (201.0, 202.0):
            assert not one.lost, now
            one.receive()
        assert one.lost
        other.send(WorkersFinished())
        assert wait([one.fileno()], PATIENCE_S)
        assert one.receive() == [WorkersFinished()]
        assert not one.lost


@pytest.mark.parametrize("data", [data for data in STRANGERS.values() if data.endswith(b"\n")][:-1])
def test_a_malformed_line_closes_its_connection(data: bytes) -> None:
    with listening_socket("127.0.0.1") as listening, socket.create_connection(listening.getsockname()) as stranger:
        channel = MessageChannel(listening.accept()[0], FROM_FOLLOWER)
        stranger.sendall(data)
        wait_until(lambda: channel.receive() == [] and channel.closed)
        assert channel.error


@pytest.fixture
def leader() -> Iterator[tuple[LeaderAgent, Rendezvous]]:
    """The leader of two nodes, and its rendezvous."""
    listener = AuthenticatedListener(listening_socket("127.0.0.1"), SECRET, PROTOCOL)
    rendezvous = Rendezvous("127.0.0.1", listener.port, timeout_s=30)
    yield LeaderAgent(INFO, rendezvous, listener, LocalNode(0, 2), ReceivedSignals()), rendezvous
    listener.close()


def test_strangers_at_the_rendezvous_do_not_end_the_run(leader: tuple[LeaderAgent, Rendezvous]) -> None:
    agent, rendezvous = leader
    job = WorkerSpec(topology_config(), Path("/run"), "resume", None)
    strangers = {name: _connected(rendezvous, data) for name, data in STRANGERS.items()}
    received: list[object] = []

    def follow() -> None:
        follower = FollowerAgent(_joined(rendezvous), INFO, ReceivedSignals())
        received.append(follower.wait_for(JoinAccepted))
        received.append(follower.wait_for(StartWorkers))
        received.append(follower.wait_for(EndRun))
        follower.close()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    _, store = agent.start_workers(0, job, "why")
    # to a run that has its nodes, too
    strangers |= {f"{name}, later": _connected(rendezvous, data) for name, data in STRANGERS.items()}
    finished = list(strangers.values())
    wait_until(lambda: agent.poll() is None and all(is_closed(stranger) for stranger in finished))
    assert not agent.failing()
    agent.end_run(0)
    thread.join(PATIENCE_S)
    store.close()
    start = StartWorkers(0, "resume", None, store.port, "why")
    assert received == [JoinAccepted(1, "host"), start, EndRun(0, "", False)]
    for stranger in strangers.values():
        stranger.close()


def test_a_node_that_sends_a_malformed_message_is_lost(
    leader: tuple[LeaderAgent, Rendezvous], capsys: pytest.CaptureFixture[str]
) -> None:
    agent, rendezvous = leader
    job = WorkerSpec(topology_config(), Path("/run"), "resume", None)
    request = json.dumps({**encode(JoinRequest(INFO)), "sent_at": 1.0}).encode() + b"\n"
    joined: list[socket.socket] = []
    thread = threading.Thread(target=lambda: joined.append(_joined(rendezvous, request)), daemon=True)
    thread.start()
    _, store = agent.start_workers(0, job, "")
    thread.join(PATIENCE_S)
    with joined[0] as node:
        node.sendall(b'{"type": "NodeStall", "sent_at": 1.0}\n')
        wait_until(lambda: agent.poll() is None and agent.failing())
    assert "node 1 (host): connection closed: NodeStall.processes: " in capsys.readouterr().err
    store.close()


def test_a_leader_that_sends_a_malformed_message_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        follower = FollowerAgent(ours, INFO, ReceivedSignals())
        with closing(follower), server.accept()[0] as connection:
            connection.sendall(b'{"type": "StartWorkers", "sent_at": 1.0}\n')
            with pytest.raises(RendezvousError, match="node 0"):
                follower.wait_for(StartWorkers)


def _joined(rendezvous: Rendezvous, data: bytes = b"") -> socket.socket:
    """A connection that knows the secret."""
    connection = connect(rendezvous, ReceivedSignals(), lambda: SECRET)
    connection.sendall(data)
    return connection


def _connected(rendezvous: Rendezvous, data: bytes) -> socket.socket:
    connection = socket.create_connection((rendezvous.host, rendezvous.port))
    with suppress(OSError):  # it may be closed before all is sent
        connection.sendall(data)
    connection.setblocking(False)
    return connection
