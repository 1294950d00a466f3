"""TensorBoard events in the run folder."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from lightning.fabric.loggers import TensorBoardLogger
from PIL.Image import Image
from torch import Tensor
from typing_extensions import override

from ...core.loggers.contract import LoggerContract
from ...core.loggers.files import cut_events
from .lossy import LossyLog
from .time_shares import shares

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_NO_CHART = "epoch"
"""A value of every log that is a count of time, not a result: it stays in metrics.csv."""


class TensorBoard(LoggerContract, TensorBoardLogger):
    """Lightning's logger with one TensorBoard run for each run folder, also after resumptions."""

    essential: ClassVar[bool] = True

    def __init__(self, root_dir: str):
        super().__init__(root_dir=root_dir, name="", version="")
        self._described = any(Path(root_dir).glob("events.out.tfevents.*"))
        self._logged: set[str] = set()
        """Names of the metrics so far, until the layout of their charts has been written."""
        self._laid_out = False
        self._lossy = LossyLog(Path(root_dir) / "events.out.tfevents")

    @property
    @override
    def experiment(self) -> "SummaryWriter":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The writer. Its file is created by the first entry, its folder never: that is the run's."""
        if self._experiment is None:
            os.stat(self.root_dir)
            _mute_writer_thread()
        return super().experiment

    def _write(self, entries: Callable[[], None]) -> None:
        """Write entries, which a full disk costs; a writer that failed once is not used again."""
        if not self._lossy.has_space():
            return
        with self._lossy.losing():
            try:
                entries()
            except (OSError, ValueError) as error:
                # Lightning makes a ValueError of what a scalar's writer raises
                cause = error if isinstance(error, OSError) else error.__cause__
                if not isinstance(cause, OSError):
                    raise
                self._experiment = None
                raise cause from None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log scalars; with the first ones the run's config as text (not earlier: TensorBoard is slow to import)."""
        self._write(lambda: self._log_metrics(metrics, step))

    def _log_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        if not self._described:
            self._described = True
            config = (Path(self.root_dir) / "config.yaml").read_text()
            indented = "".join(f"    {line}\n" for line in config.splitlines())
            self.experiment.add_text("config", indented, 0)
        shown = {name: value for name, value in metrics.items() if name != _NO_CHART} | shares(metrics)
        super().log_metrics(shown, step)
        self._logged |= shown.keys()
        validated = any(name.startswith("val/") for name in self._logged)
        if validated and any(name.startswith("time/") for name in self._logged):
            self._lay_out()
        self.experiment.flush()

    def _lay_out(self) -> None:
        """Write the layout of the charts that have values by now, once: TensorBoard reads one of each run."""
        from .chart_layout import layout

        if self._logged and not self._laid_out:
            self._laid_out = True
            self.experiment._get_file_writer().add_summary(layout(self._logged))

    @override
    def log_histogram(self, name: str, counts: Mapping[int, int], step: int, /) -> None:
        """Log a histogram: counts of integers."""
        values = sorted(counts)
        total = sum(counts.values())
        statistics: dict[str, Any] = {
            "min": values[0], "max": values[-1], "num": total, "sum": sum(v * counts[v] for v in values),
            "sum_squares": sum(v * v * counts[v] for v in values), "bucket_limits": [v + 0.5 for v in values],
            "bucket_counts": [counts[v] for v in values],
        }  # fmt: skip
        self._write(lambda: self.experiment.add_histogram_raw(name, **statistics, global_step=step))

    @override
    def log_values(self, name: str, values: Tensor, step: int, /) -> None:
        """Log a histogram of the finite ones of some values."""
        finite = values[values.isfinite()]
        if len(finite):
            self._write(lambda: self.experiment.add_histogram(name, finite, step))

    @override
    def log_image(self, name: str, image: Image, step: int, /) -> None:
        """Log an image."""
        self._write(lambda: self._log_image(name, np.asarray(image.convert("RGB")), step))

    def _log_image(self, name: str, pixels: "np.ndarray[Any, Any]", step: int) -> None:
        self.experiment.add_image(name, pixels, step, dataformats="HWC")
        self.experiment.flush()

    @override
    def log_final(self, name: str, parameters: dict[str, Any], varied: list[str], metrics: list[str], /) -> None:
        """Log the run's row in TensorBoard's HPARAMS tab."""
        from .hparams import records

        def entries() -> None:
            for record in records(name, parameters, varied, metrics):
                self.experiment._get_file_writer().add_summary(record)

        self._write(entries)

    @override
    def finalize(self, status: str) -> None:
        self._write(self._lay_out)
        self._write(lambda: super(TensorBoard, self).finalize(status))

    @override
    def cut_after(self, step: int, /) -> None:
        """Remove events after a step, which training is about to repeat, from every event file."""
        for path in Path(self.root_dir).glob("events.out.tfevents.*"):
            cut_events(path, step)


class _MutedWriter:
    """Hook of threads that prints no traceback where TensorBoard's finds the disk full: its caller gets the error."""

    def __init__(self, before: Callable[[threading.ExceptHookArgs], object]):
        self._before = before

    def __call__(self, arguments: threading.ExceptHookArgs) -> None:
        writer = type(arguments.thread).__name__ == "_AsyncWriterThread"
        if not (writer and isinstance(arguments.exc_value, OSError)):
            self._before(arguments)


def _mute_writer_thread() -> None:
    if not isinstance(threading.excepthook, _MutedWriter):
        threading.excepthook = _MutedWriter(threading.excepthook)
