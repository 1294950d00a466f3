"""The trials of a pipeline as its coordinator knows them: where each stands, and where its model is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..config import Config
from ..data import Order
from ..summary import read_summary
from .board import Board
from .parcel import Label
from .relay import TrialLoggers


@dataclass
class Copies:
    """One state of a model, and the workers that have it."""

    label: Label
    ranks: set[int]

    @property
    def safe(self) -> bool:
        """Whether it outlives any one worker."""
        return len(self.ranks) > 1 or self.label.file is not None


@dataclass
class Trial:
    """One model."""

    number: int
    """In the pipeline's list."""
    folder: Path
    config: Config
    checkpoint: Path | None = None
    """Where it goes on from at its first visit."""
    copies: list[Copies] = field(default_factory=list)
    """Newest first; an older one is kept until a newer one is at two workers, or on disk."""
    at: int | None = None
    """The worker that has begun to train it."""
    over: bool = False
    """Done or failed."""
    loggers: TrialLoggers | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        """Whether its run has come to its end."""
        return read_summary(self.folder).get("status") == "done"

    def has(self, rank: int) -> bool:
        """Whether a worker has its newest state."""
        return bool(self.copies) and rank in self.copies[0].ranks

    def outdated(self) -> list[Copies]:
        """Take off, and return, the states that are older than one that is safe."""
        for number, copies in enumerate(self.copies, 1):
            if copies.safe:
                outdated = self.copies[number:]
                del self.copies[number:]
                return outdated
        return []

    def log(self, entries: Sequence[list[Any]]) -> None:
        """Hand on what a visit has logged."""
        if self.loggers is None:
            self.loggers = TrialLoggers(self.config, self.folder)
        self.loggers.write(entries)

    def end(self) -> None:
        self.over = True
        self.at = None
        if self.loggers is not None:
            self.loggers.close()


def place(trial: Trial, board: Board) -> None:
    """Go on where the newest checkpoint is, in the middle of a partition or between two.

    Raises:
        DamagedCheckpoint: there are checkpoints, and none is whole.
    """
    trial.loggers = TrialLoggers(trial.config, trial.folder)
    found = checkpoint.newest(trial.folder)
    if found is None:
        trial.loggers.cut_after(-1)
        return
    trial.checkpoint, content = found
    position, at = content["position"], board.models[trial.number]
    trial.loggers.cut_after(position["step"])
    at.epoch, step = position["epoch"], position["step_in_epoch"]
    if trial.config.dataset.partitions == 1:
        at.bound_to = 0 if step else None
        return
    order = _order(trial.config, content["data"])
    visited, ends = order.visited(at.epoch), order.ends(at.epoch)
    at.order = [partition for partition, end in zip(visited, ends, strict=True) if end <= step]
    if step > ([0, *ends])[len(at.order)]:
        at.bound_to = visited[len(at.order)]


def _order(config: Config, data: Mapping[str, Any]) -> Order:
    settings = config.dataset
    return Order(
        data["samples"], config.batch_size, config.seed, settings.partitions, settings.partition_order,
        dict(data.get("partition_orders", {})),
    )  # fmt: skip


def rescues(trials: Sequence[Trial], living: set[int]) -> dict[int, list[int]]:
    """What each living worker has to save: the newest state of every model that nobody alive is training."""
    save: dict[int, list[int]] = {rank: [] for rank in living}
    for trial in trials:
        if trial.over or trial.at in living:
            continue
        for copies in trial.copies:
            if copies.label.file is not None:
                break
            at = copies.ranks & living
            if at:
                save[min(at)].append(copies.label.number)
                break
    return save
