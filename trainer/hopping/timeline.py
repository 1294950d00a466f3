"""Timeline of a hopping run: completed sub-epochs and transfers, their summary, and the Gantt chart."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from ..diagnostics.pictures.palette import colour_of
from .messages import SubEpochCompleted
from .progress import SubEpoch
from .snapshot import SnapshotMetadata

FILE, PICTURE = "schedule.csv", "schedule.png"
_COLUMNS = ("trial", "epoch", "partition", "worker", "began", "seconds", "training", "step", "status")
_MARGIN, _ROW, _FOOT, _WIDTH = 70, 34, 44, 1200
_LABELLED = 16
"""Pixels; a narrower bar has no number."""


@dataclass(frozen=True)
class Bar:
    """A completed sub-epoch, as the bar of a Gantt chart."""

    trial: int
    worker: int
    began: float
    """Seconds since the epoch."""
    seconds: float


class Timeline:
    """Sub-epochs of one start of the processes, appended to schedule.csv after those of earlier ones.

    Args:
        trials: names of the trials' folders.
    """

    def __init__(self, run_dir: Path, workers: int, trials: Sequence[str]):
        self._file = run_dir / FILE
        self._workers = workers
        self._trials = trials
        self.bars: list[Bar] = []
        self._moved: list[SnapshotMetadata] = []
        self._copied: list[SnapshotMetadata] = []
        self.slowest_hop = 0.0
        """Seconds."""
        if not self._file.exists():
            self._append(_COLUMNS)

    def add(self, sub_epoch: SubEpoch, worker: int, completed: SubEpochCompleted) -> None:
        self.bars.append(Bar(sub_epoch.model, worker, completed.began, completed.seconds))
        self._append(
            (
                self._trials[sub_epoch.model], sub_epoch.epoch, sub_epoch.partition, worker, f"{completed.began:.3f}",
                f"{completed.seconds:.4f}", f"{completed.training:.4f}", completed.step, completed.status,
            )
        )  # fmt: skip

    def add_move(self, metadata: SnapshotMetadata) -> None:
        """Record the hop of a model from one worker to another."""
        self._moved.append(metadata)

    def add_copy(self, metadata: SnapshotMetadata) -> None:
        """Record a redundant copy of a model that stays on its worker."""
        self._copied.append(metadata)

    def hop_took(self, seconds: float) -> None:
        self.slowest_hop = max(self.slowest_hop, seconds)

    def _append(self, row: Sequence[Any]) -> None:
        with open(self._file, "a", newline="") as file:
            csv.writer(file).writerow(row)

    def summary(self) -> dict[str, Any]:
        """Entries of summary.json, in seconds and bytes."""
        busy: dict[int, float] = defaultdict(float)
        models: dict[int, float] = defaultdict(float)
        for bar in self.bars:
            busy[bar.worker] += bar.seconds
            models[bar.trial] += bar.seconds
        first = min((bar.began for bar in self.bars), default=0.0)
        makespan = max((bar.began + bar.seconds for bar in self.bars), default=0.0) - first
        parts = {
            "parameters": sum(metadata.parameters for metadata in self._moved),
            "optimizer": sum(metadata.optimizer for metadata in self._moved),
        }
        total = sum(metadata.size for metadata in self._moved)
        return {
            "visits": len(self.bars),
            "makespan_s": makespan,
            # no schedule beats its longest model or the mean load of its workers
            "bound_s": max(max(models.values(), default=0.0), sum(busy.values()) / self._workers),
            "busy_s": [busy[worker] for worker in range(self._workers)],
            "hops": len(self._moved),
            "hop_bytes": {**parts, "rest": total - sum(parts.values())},
            "copies": len(self._copied),
            "copy_bytes": sum(metadata.size for metadata in self._copied),
        }

    def text(self) -> str:
        """Summary in one sentence."""
        summary = self.summary()
        moved = sum(summary["hop_bytes"].values()) / 1e6
        idle = 1 - sum(summary["busy_s"]) / max(1e-9, self._workers * summary["makespan_s"])
        return (
            f"pipeline: {summary['visits']} sub-epochs in {summary['makespan_s']:.1f} s (no order takes less than "
            f"{summary['bound_s']:.1f} s), workers idle {100 * idle:.1f} %; {summary['hops']} hops moved {moved:.4g} MB"
        )

    def draw(self) -> None:
        """Write the Gantt chart as a file and for TensorBoard."""
        import numpy
        from torch.utils.tensorboard import SummaryWriter

        picture = gantt_chart(self.bars, self._workers, self._trials, self.text())
        picture.save(self._file.with_name(PICTURE))
        with SummaryWriter(str(self._file.parent)) as writer:
            writer.add_image("pipeline/schedule", numpy.asarray(picture), dataformats="HWC")


def gantt_chart(bars: Sequence[Bar], workers: int, names: Sequence[str], caption: str) -> Image.Image:
    """Gantt chart with a row for each worker and a colour for each trial; white is idle.

    Args:
        names: of the trials, by their number.
        caption: the line below.
    """
    first = min((bar.began for bar in bars), default=0.0)
    last = max((bar.began + bar.seconds for bar in bars), default=1.0)
    scale = (_WIDTH - _MARGIN - 10) / max(1e-9, last - first)
    image = Image.new("RGB", (_WIDTH, workers * _ROW + _FOOT + 10), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default()
    for bar in bars:
        left, top = _MARGIN + (bar.began - first) * scale, 10 + bar.worker * _ROW
        right = max(left + 1, left + bar.seconds * scale - 1)
        draw.rectangle((left, top, right, top + _ROW - 6), fill=colour_of(bar.trial))
        if right - left >= _LABELLED:
            middle = ((left + right) / 2, top + _ROW / 2 - 3)
            draw.text(middle, names[bar.trial], fill="white", font=font, anchor="mm")
    for worker in range(workers):
        draw.text((8, 10 + worker * _ROW + _ROW / 2 - 3), f"worker {worker}", fill="black", font=font, anchor="lm")
    draw.text((_MARGIN, workers * _ROW + 22), "0 s", fill="black", font=font, anchor="lm")
    draw.text((_WIDTH - 10, workers * _ROW + 22), f"{last - first:.1f} s", fill="black", font=font, anchor="rm")
    draw.text((_WIDTH / 2, workers * _ROW + _FOOT - 6), caption, fill="black", font=font, anchor="mm")
    return image
