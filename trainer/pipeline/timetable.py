"""What a pipeline has done so far: who trained what and when, what was moved, and what could not have been faster."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .board import Visit
from .parcel import Label

FILE, PICTURE = "schedule.csv", "schedule.png"
_COLUMNS = ("trial", "epoch", "partition", "worker", "began", "seconds", "training", "step", "status")


@dataclass(frozen=True)
class Made:
    """A visit that was made."""

    trial: int
    epoch: int
    partition: int
    worker: int
    began: float
    """Seconds since the epoch."""
    seconds: float


class Timetable:
    """The visits of one attempt, and of those before it in schedule.csv.

    Args:
        trials: names of the trials' folders.
    """

    def __init__(self, run_dir: Path, workers: int, trials: Sequence[str]):
        self._file = run_dir / FILE
        self._workers = workers
        self._trials = trials
        self.visits: list[Made] = []
        self._moved: list[Label] = []
        self._copied: list[Label] = []
        self.slowest_hop = 0.0
        """Seconds."""
        if not self._file.exists():
            self._append(_COLUMNS)

    def add(self, visit: Visit, worker: int, told: dict[str, Any]) -> None:
        self.visits.append(Made(visit.model, visit.epoch, visit.partition, worker, told["began"], told["seconds"]))
        self._append(
            (
                self._trials[visit.model], visit.epoch, visit.partition, worker, f"{told['began']:.3f}",
                f"{told['seconds']:.4f}", f"{told['training']:.4f}", told["step"], told["status"],
            )
        )  # fmt: skip

    def moved(self, label: Label) -> None:
        """A model is sent from one worker to another."""
        self._moved.append(label)

    def copied(self, label: Label) -> None:
        """A model that stays at its worker is sent to another one for safety."""
        self._copied.append(label)

    def hop_took(self, seconds: float) -> None:
        self.slowest_hop = max(self.slowest_hop, seconds)

    def _append(self, row: Sequence[Any]) -> None:
        with open(self._file, "a", newline="") as file:
            csv.writer(file).writerow(row)

    def summary(self) -> dict[str, Any]:
        """In seconds and bytes."""
        busy: dict[int, float] = defaultdict(float)
        models: dict[int, float] = defaultdict(float)
        for visit in self.visits:
            busy[visit.worker] += visit.seconds
            models[visit.trial] += visit.seconds
        first = min((visit.began for visit in self.visits), default=0.0)
        makespan = max((visit.began + visit.seconds for visit in self.visits), default=0.0) - first
        parts = {
            "parameters": sum(label.parameters for label in self._moved),
            "optimizer": sum(label.optimizer for label in self._moved),
        }
        whole = sum(label.size for label in self._moved)
        return {
            "visits": len(self.visits),
            "makespan_s": makespan,
            "bound_s": max(max(models.values(), default=0.0), sum(busy.values()) / self._workers),
            "busy_s": [busy[worker] for worker in range(self._workers)],
            "hops": len(self._moved),
            "hop_bytes": {**parts, "rest": whole - sum(parts.values())},
            "copies": len(self._copied),
            "copy_bytes": sum(label.size for label in self._copied),
        }

    def text(self) -> str:
        """One sentence."""
        told = self.summary()
        moved = sum(told["hop_bytes"].values()) / 1e6
        idle = 1 - sum(told["busy_s"]) / max(1e-9, self._workers * told["makespan_s"])
        return (
            f"pipeline: {told['visits']} visits in {told['makespan_s']:.1f} s (no order takes less than "
            f"{told['bound_s']:.1f} s), workers idle {100 * idle:.1f} %; {told['hops']} hops moved {moved:.4g} MB"
        )

    def draw(self) -> None:
        """The picture, as a file and for TensorBoard."""
        import numpy
        from torch.utils.tensorboard import SummaryWriter

        from .gantt import gantt

        picture = gantt(self.visits, self._workers, self._trials, self.text())
        picture.save(self._file.with_name(PICTURE))
        with SummaryWriter(str(self._file.parent)) as writer:
            writer.add_image("pipeline/schedule", numpy.asarray(picture), dataformats="HWC")
