"""The agent of a node other than 0: it starts and ends worker groups at the leader's request."""

import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import TypeVar

from ..base.handshake import AuthenticationError
from .authentication import authenticate
from .channel import MessageChannel
from .messages import (
    FROM_LEADER,
    AgentSignal,
    AllWorkersFinished,
    EndRun,
    FromLeader,
    GroupFailing,
    JoinRequest,
    NodeResult,
    NodeStall,
    RunStall,
    WorkersFinished,
)
from .progress_report import ProgressReport
from .rendezvous import PROTOCOL, NodeInfo, Rendezvous, RendezvousError
from .signals import ReceivedSignals
from .worker_group import POLL_S, RunResult

_RETRY_S = 0.5
_Expected = TypeVar("_Expected")


def connect(rendezvous: Rendezvous, signals: ReceivedSignals, read_secret: Callable[[], bytes]) -> socket.socket:
    """An authenticated connection to node 0, as soon as it listens.

    Args:
        read_secret: the run's secret, as it is now.

    Raises:
        RendezvousError: it does not within the time, it leads another run, or a signal came first.
    """
    end = time.monotonic() + rendezvous.timeout_s
    while True:
        secret = read_secret()
        try:
            return _connect(rendezvous, signals, secret, end)
        except AuthenticationError:
            reason = "it has another secret"
            if read_secret() == secret:
                text = "whoever listens there does not have this run's secret: is it the same run, in the same folder?"
                raise RendezvousError(f"{rendezvous}: {text}", code=3) from None
        except OSError as error:
            reason = error.strerror or str(error)
        if signals.received:
            raise RendezvousError("stopped before all nodes had joined", signals.exit_code)
        if time.monotonic() > end:
            raise RendezvousError(f"no answer from {rendezvous} after {rendezvous.timeout_s:g} s: {reason}")
        time.sleep(_RETRY_S)


def _connect(rendezvous: Rendezvous, signals: ReceivedSignals, secret: bytes, end: float) -> socket.socket:
    connection = socket.create_connection((rendezvous.host, rendezvous.port), timeout=5)
    try:
        # it may listen, and import torch
        authenticate(connection, secret, PROTOCOL, end - time.monotonic(), lambda: bool(signals.received))
    except BaseException:
        connection.close()
        raise
    return connection


class FollowerAgent:
    """Node 0, and the nodes behind it, as seen by another node; see `peers.Peers`."""

    def __init__(self, connection: socket.socket, node: NodeInfo, signals: ReceivedSignals):
        self.leader_host = "?"
        self._channel = MessageChannel(connection, FROM_LEADER)
        self._signals = signals
        self._inbox: list[FromLeader] = []
        self.reset()
        self._channel.send(JoinRequest(node))

    def reset(self) -> None:
        """Discard the state of the previous worker group."""
        self._failing = self._all_finished = False
        self._stall_reported = False
        self._run_stall: Sequence[ProgressReport] | None = None

    def wait_for(self, kind: type[_Expected], extra_s: float = 0.0) -> _Expected | EndRun:
        """The next message of this type, or the end of the run.

        Args:
            extra_s: how long node 0 may be silent, beyond the time after which an agent counts as lost.

        Raises:
            RendezvousError: node 0 is lost.
        """
        end = time.monotonic() + extra_s
        while True:
            self.poll()
            for message in self._inbox:
                if isinstance(message, kind | EndRun):
                    self._inbox.remove(message)
                    return message
            if self._channel.closed or (self._channel.lost and time.monotonic() > end):
                raise RendezvousError(f"node 0 ({self.leader_host}) is lost")
            wait([self._channel.fileno()], POLL_S)

    def poll(self) -> None:
        for message in self._channel.receive():
            match message:
                case AgentSignal():
                    self._signals.add(message.number, message.repeated)
                case GroupFailing():
                    self._failing = True
                case AllWorkersFinished():
                    self._all_finished = True
                case RunStall():
                    self._run_stall = message.processes
                case _:
                    self._inbox.append(message)
        for number, repeated in self._signals.take_local():
            self._channel.send(AgentSignal(number, repeated))
        self._channel.keep_alive()

    def failing(self) -> bool:
        return self._failing or self._channel.lost

    def workers_finished(self) -> bool:
        return self._all_finished

    def report_stall(self, local: Sequence[ProgressReport] | None) -> Sequence[ProgressReport] | None:
        if (local is not None) != self._stall_reported:
            self._stall_reported = local is not None
            self._channel.send(NodeStall(local))
        run_stall, self._run_stall = self._run_stall, None
        if run_stall is not None:
            self._stall_reported = False
        return run_stall

    def report_failing(self) -> None:
        self._channel.send(GroupFailing())

    def report_workers_finished(self) -> None:
        self._channel.send(WorkersFinished())

    def report_result(self, result: RunResult) -> None:
        self._channel.send(NodeResult(result.failed, result.exits))

    def close(self) -> None:
        self._channel.close()
