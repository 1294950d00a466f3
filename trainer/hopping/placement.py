"""Placement of snapshots: the workers that hold each, and the transfers to the workers that need them."""

from collections.abc import Mapping, Sequence

from .messages import CopySnapshot, DropSnapshot, SendSnapshot, StartSubEpoch
from .snapshot import SnapshotMetadata
from .timeline import Timeline
from .trials import HoppingTrial, Replicas
from .worker_handle import WorkerHandle


class SnapshotPlacement:
    """Sends, copies and drops snapshots: each is on two workers, or on disk, before an older one is dropped.

    Thus the loss of a worker costs a model one sub-epoch at most, without a checkpoint after each.
    """

    def __init__(self, handles: Mapping[int, WorkerHandle], workers: int, timeline: Timeline):
        self._handles = handles
        self._workers = workers
        self._timeline = timeline

    def start(
        self, trial: HoppingTrial, handle: WorkerHandle, number: int, epoch: int, partitions: list[int],
        stop_reason: str | None,
    ) -> None:  # fmt: skip
        """Start a sub-epoch on a worker, and have the model sent to it. Arguments as in `StartSubEpoch`."""
        metadata, source, checkpoint = None, None, None
        if trial.snapshots:
            metadata = trial.snapshots[0].metadata
            source = handle.rank if trial.held_by(handle.rank) else min(trial.snapshots[0].ranks, default=None)
        elif trial.checkpoint is not None:
            checkpoint = trial.checkpoint
        handle.channel.send(
            StartSubEpoch(number, trial.number, epoch, partitions, stop_reason, metadata, source, checkpoint)
        )
        if metadata is None or metadata.file is not None:
            return
        assert source is not None
        if source != handle.rank:
            self._send(metadata, source, handle.rank, number)
            self._timeline.add_move(metadata)
        elif len(trial.snapshots[0].ranks) == 1 < self._workers:
            self._copy(metadata, source, number)

    def _send(self, metadata: SnapshotMetadata, source: int, to: int, tag: int) -> None:
        self._handles[source].channel.send(SendSnapshot(metadata.number, to, tag))

    def _copy(self, metadata: SnapshotMetadata, source: int, tag: int) -> None:
        """Copy the snapshot of a model that stays on its worker: it would be lost with it."""
        other = (source + 1) % self._workers
        self._send(metadata, source, other, tag)
        self._timeline.add_copy(metadata)
        self._handles[other].channel.send(CopySnapshot(metadata, source, tag))

    def add_copy(self, trial: HoppingTrial, rank: int, number: int) -> None:
        """A worker holds a copy of a snapshot."""
        for replicas in trial.snapshots:
            if replicas.metadata.number == number:
                replicas.ranks.add(rank)
                self._drop(trial.pop_outdated())
                return
        self._handles[rank].channel.send(DropSnapshot(number))

    def record_arrival(self, trial: HoppingTrial, rank: int) -> None:
        """A worker has begun to train the model that was sent to it."""
        if trial.snapshots:
            trial.snapshots[0].ranks.add(rank)
            self._drop(trial.pop_outdated())

    def record_new(self, trial: HoppingTrial, rank: int, metadata: SnapshotMetadata) -> None:
        """A sub-epoch has made a new snapshot, on the worker that ran it."""
        if trial.snapshots:
            self._drop_on(trial.snapshots[0], {rank})
        trial.snapshots.insert(0, Replicas(metadata, set() if metadata.file else {rank}))

    def drop(self, trial: HoppingTrial) -> None:
        """Drop all snapshots of a trial that has ended."""
        self._drop(trial.snapshots)
        trial.snapshots.clear()

    def _drop(self, snapshots: Sequence[Replicas]) -> None:
        for each in snapshots:
            self._drop_on(each, set(each.ranks))

    def _drop_on(self, replicas: Replicas, ranks: set[int]) -> None:
        for rank in ranks & replicas.ranks:
            self._handles[rank].channel.send(DropSnapshot(replicas.metadata.number))
        replicas.ranks -= ranks
