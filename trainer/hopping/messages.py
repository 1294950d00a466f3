"""Protocol between coordinator and workers: one dataclass a message, one codec a direction.

A connection begins with `WorkerReady`. Anything else at that point, and anything unknown or malformed later, closes
that connection alone: the coordinator's port can be reached by other programs of the network.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..launch.codec import MessageCodec
from .snapshot import SnapshotMetadata

EndReason = Literal["done", "stopped", "lost"]
"""All trials have ended, a signal was received, or a worker or the coordinator was lost."""
DONE: EndReason = "done"
STOPPED: EndReason = "stopped"
LOST: EndReason = "lost"


@dataclass(frozen=True)
class LoggedMetrics:
    """Entry of `Logger.log_metrics`."""

    metrics: dict[str, float]
    step: int | None


@dataclass(frozen=True)
class LoggedHistogram:
    """Entry of a logger's `log_histogram`."""

    name: str
    counts: dict[int, int]
    step: int


@dataclass(frozen=True)
class LoggedImage:
    """Entry of a logger's `log_image`."""

    name: str
    png: str
    """Base64."""
    step: int


@dataclass(frozen=True)
class LoggedResult:
    """Entry of a logger's `log_final`."""

    name: str
    parameters: dict[str, Any]
    varied: list[str]
    metrics: list[str]


LogEntry = LoggedMetrics | LoggedHistogram | LoggedImage | LoggedResult


@dataclass(frozen=True)
class WorkerReady:
    """First message of a worker."""

    rank: int


@dataclass(frozen=True)
class SubEpochStarted:
    """The model is on the worker's device."""

    number: int
    hop: float
    """Seconds that the model took to arrive."""


@dataclass(frozen=True)
class SubEpochCompleted:
    """End of a sub-epoch, for whatever reason but an error."""

    number: int
    status: str
    """"left": the model hops on. "done": it is trained and tested. Else the status of a stopped run."""
    epoch: int
    """Epoch of the model now."""
    step: int
    began: float
    """Seconds since the epoch."""
    seconds: float
    training: float
    """Seconds of them in the training loop."""
    metrics: dict[str, float]
    snapshot: SnapshotMetadata | None
    """Snapshot of the model that hops on."""
    log: list[LogEntry]


@dataclass(frozen=True)
class SubEpochFailed:
    """The trial has failed."""

    number: int
    log: list[LogEntry]


@dataclass(frozen=True)
class SnapshotCopied:
    """The worker holds a redundant copy of a snapshot."""

    trial: int
    number: int


@dataclass(frozen=True)
class SnapshotLost:
    """A snapshot did not arrive, or arrived damaged."""


@dataclass(frozen=True)
class WorkerStopping:
    """The worker has received a signal."""

    status: str


@dataclass(frozen=True)
class WorkerLeaving:
    """Last message of a worker."""


@dataclass(frozen=True)
class StartSubEpoch:
    """Train a model on one partition next."""

    number: int
    """Among all sub-epochs of the hopping run; tag of the transfer."""
    trial: int
    """Number of the run folder in the config's list."""
    epoch: int
    partitions: list[int]
    """Partitions of this epoch so far; the last is to be trained on. Empty if the trial is tested and its run ends."""
    stop_reason: str | None
    """Why it ends early."""
    snapshot: SnapshotMetadata | None
    """The model; None: from a checkpoint, or new."""
    source: int | None
    """The worker that sends the snapshot."""
    checkpoint: Path | None


@dataclass(frozen=True)
class SendSnapshot:
    """Send a snapshot to another worker."""

    number: int
    to: int
    tag: int


@dataclass(frozen=True)
class CopySnapshot:
    """Receive and hold a redundant copy of a snapshot."""

    snapshot: SnapshotMetadata
    source: int
    tag: int


@dataclass(frozen=True)
class DropSnapshot:
    """Free the memory of a snapshot."""

    number: int


@dataclass(frozen=True)
class EndWorkers:
    """Last message of the coordinator."""

    reason: EndReason
    save: list[int] | None
    """Snapshots to write to checkpoints; None: all."""


WorkerMessage = (
    WorkerReady | SubEpochStarted | SubEpochCompleted | SubEpochFailed | SnapshotCopied | SnapshotLost | WorkerStopping
    | WorkerLeaving
)  # fmt: skip
CoordinatorMessage = StartSubEpoch | SendSnapshot | CopySnapshot | DropSnapshot | EndWorkers

FROM_WORKER = MessageCodec[WorkerMessage](*get_args(WorkerMessage))
FROM_COORDINATOR = MessageCodec[CoordinatorMessage](*get_args(CoordinatorMessage))
