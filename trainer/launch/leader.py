"""The agent of node 0: the other agents connect to it, and it decides for all."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .authentication import AuthenticatedListener
from .channel import MessageChannel
from .messages import (
    FROM_FOLLOWER,
    AgentSignal,
    AllWorkersFinished,
    EndRun,
    FromFollower,
    GroupFailing,
    JoinAccepted,
    JoinRequest,
    NodeResult,
    NodeStall,
    RunStall,
    StartWorkers,
    WorkersFinished,
)
from .process import ProcessExit
from .progress_report import ProgressReport
from .rendezvous import PROTOCOL, NodeInfo, Rendezvous, RendezvousError, mismatch
from .roles import LocalNode
from .signals import ReceivedSignals
from .store import AgentStore, Store
from .worker_group import POLL_S, RunResult, WorkerSpec

_FollowerChannel = MessageChannel[FromFollower]


@dataclass
class NodeState:
    """Another node, as known to node 0."""

    rank: int
    channel: _FollowerChannel | None = None
    info: NodeInfo | None = None
    lost: str | None = None
    """Name of a node whose agent is lost."""
    failing: bool = False
    workers_finished: bool = False
    stall: Sequence[ProgressReport] | None = None
    """Reports of its processes, where none of its workers makes progress."""
    has_result: bool = False
    exits: Sequence[ProcessExit] = field(default_factory=list)

    def reset(self) -> None:
        """Discard the state of the previous worker group."""
        self.failing = self.workers_finished = self.has_result = False
        self.stall = None
        self.exits = []

    def close_if_lost(self) -> None:
        if self.channel is not None and self.channel.lost:
            if self.channel.error:
                print(f"{self.name}: connection closed: {self.channel.error}", file=sys.stderr, flush=True)
            self.channel.close()
            self.channel, self.lost = None, self.name

    @property
    def name(self) -> str:
        return f"node {self.rank} ({self.info.host if self.info else '?'})"


class LeaderAgent:
    """The other nodes as seen by node 0; see `peers.Peers` and `agent_group.AgentGroup`.

    Attributes:
        started: whether a worker group has been started.

    Args:
        listener: at the rendezvous.
    """

    def __init__(
        self, info: NodeInfo, rendezvous: Rendezvous, listener: AuthenticatedListener, node: LocalNode,
        signals: ReceivedSignals,
    ):  # fmt: skip
        self.info = info
        self.rendezvous = rendezvous
        self.node = node
        self.others = [NodeState(rank) for rank in range(1, node.count)]
        self.started = False
        self._signals = signals
        self._listener = listener
        self._unidentified: list[_FollowerChannel] = []
        """Connections without a JoinRequest so far."""
        self._local_finished = self._all_finished_sent = self._failing_sent = False

    def start_workers(self, restart_count: int, job: WorkerSpec, reason: str) -> tuple[LocalNode, Store]:
        """Wait until all nodes have joined, and have them start their worker groups.

        Raises:
            RendezvousError: not all joined, they do not agree, or a signal came first.
        """
        try:
            self._wait_for_nodes()
        except RendezvousError as error:
            self.end_run(error.code, str(error))
            raise
        self.started = True
        self._local_finished = self._all_finished_sent = self._failing_sent = False
        store = AgentStore(self.rendezvous.host)
        for other in self.others:
            other.reset()
        self._send(StartWorkers(restart_count, job.verb, job.checkpoint, store.port, reason))
        return self.node, store

    def _wait_for_nodes(self) -> None:
        end = time.monotonic() + self.rendezvous.timeout_s
        if self.started and any(other.lost for other in self.others):
            lost = ", ".join(other.lost for other in self.others if other.lost)
            if not self.rendezvous.replaceable:
                raise RendezvousError(f"{lost} is lost")
            command = f"leyden node --rendezvous {self.rendezvous}"
            print(f"{lost}: waiting {self.rendezvous.timeout_s:g} s for another agent: {command}", flush=True)
        while any(other.channel is None for other in self.others):
            self._accept()
            self.poll()
            if self._signals.received:
                raise RendezvousError("stopped before all nodes had joined", self._signals.exit_code)
            if time.monotonic() > end:
                joined = f"{1 + sum(other.channel is not None for other in self.others)} of {self.node.count} nodes"
                raise RendezvousError(f"{joined} joined at {self.rendezvous} within {self.rendezvous.timeout_s:g} s")
            channels = [*self._unidentified, *self._channels()]
            self._listener.wait([channel.fileno() for channel in channels], POLL_S)
        different = mismatch([self.info, *(other.info for other in self.others if other.info)])
        if different:
            raise RendezvousError(different, code=3)

    def _accept(self) -> None:
        for connection in self._listener.accept():
            self._unidentified.append(MessageChannel(connection, FROM_FOLLOWER))
        for channel in list(self._unidentified):
            messages = channel.receive()
            if messages:
                self._unidentified.remove(channel)
                self._admit(channel, messages)
            elif channel.lost:
                self._unidentified.remove(channel)
                self._close_unidentified(channel, channel.error)

    def _admit(self, channel: _FollowerChannel, messages: list[FromFollower]) -> None:
        request, *further = messages
        free = next((other for other in self.others if other.channel is None), None)
        if not isinstance(request, JoinRequest):
            self._close_unidentified(channel, f"{type(request).__name__} before JoinRequest")
        elif free is None:
            channel.send(EndRun(1, f"the run has its {self.node.count} nodes already", users_mistake=False))
            channel.finish()
        else:
            free.channel, free.info, free.lost = channel, request.node, None
            channel.send(JoinAccepted(free.rank, self.info.host))
            for message in further:
                self._handle(free, message)

    @staticmethod
    def _close_unidentified(channel: _FollowerChannel, error: str) -> None:
        if error:
            print(f"{PROTOCOL}: a connection was closed: {error}", file=sys.stderr, flush=True)
        channel.close()

    def poll(self) -> None:
        for other in self.others:
            for message in other.channel.receive() if other.channel is not None else ():
                self._handle(other, message)
            other.close_if_lost()
        for number, repeated in self._signals.take_local():
            self._send(AgentSignal(number, repeated))
        if self.failing() and not self._failing_sent:
            self.report_failing()
        if self._local_finished and self.workers_finished() and not self._all_finished_sent:
            self._all_finished_sent = True
            self._send(AllWorkersFinished())
        for channel in self._channels():
            channel.keep_alive()
        if all(other.channel is not None for other in self.others):
            self._accept()  # an agent too many gets its answer at once

    def _handle(self, node: NodeState, message: FromFollower) -> None:
        match message:
            case GroupFailing():
                node.failing = True
            case WorkersFinished():
                node.workers_finished = True
            case NodeStall():
                node.stall = message.processes
            case NodeResult():
                assert node.channel is not None
                node.has_result, node.failing = True, node.failing or message.failed
                node.exits = [one.shift_clock(node.channel.clock_offset) for one in message.exits]
            case AgentSignal():
                self._signals.add(message.number, message.repeated)
                for channel in self._channels():
                    if channel is not node.channel:
                        channel.send(message)

    def _channels(self) -> list[_FollowerChannel]:
        return [other.channel for other in self.others if other.channel is not None]

    def _send(self, message: object) -> None:
        for channel in self._channels():
            channel.send(message)

    def failing(self) -> bool:
        return any(other.failing or (other.lost and not other.has_result) for other in self.others)

    def workers_finished(self) -> bool:
        return all(other.workers_finished for other in self.others)

    def report_failing(self) -> None:
        self._failing_sent = True
        self._send(GroupFailing())

    def report_workers_finished(self) -> None:
        self._local_finished = True

    def report_stall(self, local: Sequence[ProgressReport] | None) -> Sequence[ProgressReport] | None:
        if local is None or any(other.stall is None for other in self.others):
            return None
        reports = [*local, *(report for other in self.others for report in other.stall or ())]
        self._send(RunStall(reports))
        for other in self.others:
            other.stall = None
        return reports

    def gather_result(self, local: RunResult) -> RunResult:
        """Wait for the results of all nodes that are not lost. Returns their combination with this node's."""
        while any(other.channel is not None and not other.has_result for other in self.others):
            self.poll()
            time.sleep(POLL_S)
        lost_node = next(
            (f"{other.lost} is lost" for other in self.others if other.lost and not other.has_result), None
        )
        exits = [*local.exits, *(process_exit for other in self.others for process_exit in other.exits)]
        return replace(local, failed=local.failed or self.failing(), exits=exits, cause=lost_node or local.cause)

    def end_run(self, code: int, text: str = "", users_mistake: bool = False) -> None:
        """Send the run's exit code, and a text for the user, to all nodes."""
        self._listener.close()
        for channel in self._unidentified:
            channel.close()
        self._send(EndRun(code, text, users_mistake))
        for channel in self._channels():
            channel.finish()
