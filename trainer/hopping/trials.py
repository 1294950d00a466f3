"""Trials in the coordinator: position of each in its training, and the workers that hold its snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.schema import Config
from ..core.checkpoints import checkpoint_io
from ..data.order.sample_order import SampleOrder
from ..runs.summary import read_summary
from .log_forwarding import TrialLoggers
from .messages import LogEntry
from .progress import HoppingProgress
from .snapshot import SnapshotMetadata


@dataclass
class Replicas:
    """One snapshot of a model, and the workers that hold it."""

    metadata: SnapshotMetadata
    ranks: set[int]

    @property
    def safe(self) -> bool:
        """Whether it survives the loss of any one worker."""
        return len(self.ranks) > 1 or self.metadata.file is not None


@dataclass
class HoppingTrial:
    """One model."""

    number: int
    """Number in the config's list of run folders."""
    folder: Path
    config: Config
    checkpoint: Path | None = None
    """Checkpoint that its first sub-epoch continues from."""
    snapshots: list[Replicas] = field(default_factory=list)
    """Newest first; an older one is kept until a newer one is on two workers, or on disk."""
    trained_by: int | None = None
    """The worker that has begun to train it."""
    finished: bool = False
    """Done or failed."""
    loggers: TrialLoggers | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        """Whether its run is complete."""
        return read_summary(self.folder).get("status") == "done"

    def held_by(self, rank: int) -> bool:
        """Whether a worker holds its newest snapshot."""
        return bool(self.snapshots) and rank in self.snapshots[0].ranks

    def pop_outdated(self) -> list[Replicas]:
        """Remove and return the snapshots older than a safe one."""
        for number, replicas in enumerate(self.snapshots, 1):
            if replicas.safe:
                outdated = self.snapshots[number:]
                del self.snapshots[number:]
                return outdated
        return []

    def log(self, entries: Sequence[LogEntry]) -> None:
        """Write the entries of a sub-epoch."""
        if self.loggers is None:
            self.loggers = TrialLoggers(self.config, self.folder)
        self.loggers.write(entries)

    def end(self, status: str) -> None:
        """
        Args:
            status: for its loggers, "success" or "failed".
        """
        self.finished = True
        self.trained_by = None
        if self.loggers is not None:
            self.loggers.finalize(status)


def restore_position(trial: HoppingTrial, progress: HoppingProgress) -> None:
    """Set a trial's progress to its newest checkpoint, in the middle of a partition or between two.

    Raises:
        DamagedCheckpoint: there are checkpoints, and none is intact.
    """
    trial.loggers = TrialLoggers(trial.config, trial.folder)
    found = checkpoint_io.newest(trial.folder)
    if found is None:
        trial.loggers.cut_after(-1)
        return
    trial.checkpoint, content = found
    position, model = content["position"], progress.models[trial.number]
    trial.loggers.cut_after(position["step"])
    model.epoch, step = position["epoch"], position["step_in_epoch"]
    if trial.config.dataset.partitions == 1:
        model.bound_to = 0 if step else None
        return
    order = _sample_order(trial.config, content["data"])
    visited, ends = order.visited_partitions(model.epoch), order.ends(model.epoch)
    model.order = [partition for partition, end in zip(visited, ends, strict=True) if end <= step]
    if step > ([0, *ends])[len(model.order)]:
        model.bound_to = visited[len(model.order)]


def _sample_order(config: Config, data: Mapping[str, Any]) -> SampleOrder:
    settings = config.dataset
    return SampleOrder(
        data["samples"], config.batch_size, config.seed, settings.partitions, settings.partition_order,
        dict(data.get("partition_orders", {})), partition_sizes=data.get("partition_sizes"),
        drop_last=settings.drop_last,
    )  # fmt: skip


def snapshots_to_save(trials: Sequence[HoppingTrial], alive: set[int]) -> dict[int, list[int]]:
    """Snapshots that each surviving worker has to save: the newest of every model that none of them is training."""
    save: dict[int, list[int]] = {rank: [] for rank in alive}
    for trial in trials:
        if trial.finished or trial.trained_by in alive:
            continue
        for replicas in trial.snapshots:
            if replicas.metadata.file is not None:
                break
            holders = replicas.ranks & alive
            if holders:
                save[min(holders)].append(replicas.metadata.number)
                break
    return save
