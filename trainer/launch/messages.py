"""Messages between the agents of a run's nodes: node 0 leads, the others follow."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from .codec import MessageCodec
from .process import ProcessExit
from .progress_report import ProgressReport
from .rendezvous import NodeInfo


@dataclass(frozen=True)
class JoinRequest:
    """A follower's first message."""

    node: NodeInfo


@dataclass(frozen=True)
class JoinAccepted:
    """The leader's answer, once the follower is one of the run's nodes."""

    node_rank: int
    host: str
    """The leader's."""


@dataclass(frozen=True)
class StartWorkers:
    """Request to start a worker group."""

    restart_count: int
    verb: str
    checkpoint: Path | None
    store_port: int
    """Port of the store at the leader's address."""
    reason: str
    """Why the previous worker group ended; "" for the first."""


@dataclass(frozen=True)
class EndRun:
    """The leader's last message."""

    code: int
    text: str
    users_mistake: bool


@dataclass(frozen=True)
class AgentSignal:
    """A signal that an agent has received; the leader forwards a follower's to the others."""

    number: signal.Signals
    repeated: bool
    """Whether it is not the first on its node."""


@dataclass(frozen=True)
class GroupFailing:
    """The worker group has failed: a follower's own, or, from the leader, that of any node."""


@dataclass(frozen=True)
class WorkersFinished:
    """No worker of the follower's runs any more; its servers may."""


@dataclass(frozen=True)
class AllWorkersFinished:
    """No worker of any node runs any more: servers may leave."""


@dataclass(frozen=True)
class NodeStall:
    """No worker of the follower's makes progress; `processes` is None where one does again."""

    processes: Sequence[ProgressReport] | None


@dataclass(frozen=True)
class RunStall:
    """No worker of any node makes progress."""

    processes: Sequence[ProgressReport]


@dataclass(frozen=True)
class NodeResult:
    """Result of the follower's worker group."""

    failed: bool
    exits: Sequence[ProcessExit]


FromFollower = JoinRequest | AgentSignal | GroupFailing | WorkersFinished | NodeStall | NodeResult
FromLeader = JoinAccepted | StartWorkers | EndRun | AgentSignal | GroupFailing | AllWorkersFinished | RunStall

FROM_FOLLOWER = MessageCodec[FromFollower](*get_args(FromFollower))
FROM_LEADER = MessageCodec[FromLeader](*get_args(FromLeader))
