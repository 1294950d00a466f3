"""Log forwarding: entries that a model logs on its workers, written by one set of loggers in the coordinator."""

from argparse import Namespace
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from lightning.fabric.loggers import Logger
from PIL.Image import Image
from PIL.Image import open as open_image
from typing_extensions import override

from ..config.schema import Config
from ..core.loggers.calls import call_logger
from ..core.loggers.contract import LoggerContract
from ..core.loggers.files import cut_logger
from ..engine.build import make_loggers
from .messages import LogEntry, LoggedHistogram, LoggedImage, LoggedMetrics, LoggedResult


class LogForwarder(LoggerContract, Logger):
    """Logger that collects the entries of a sub-epoch for the coordinator.

    TensorBoard and CSV files take one writer at a time, and a model has as many workers as partitions.
    """

    essential: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[LogEntry] = []

    @property
    def name(self) -> str:
        return "log_forwarder"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They are in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.entries.append(LoggedMetrics({name: float(value) for name, value in metrics.items()}, step))

    @override
    def log_histogram(self, name: str, counts: Mapping[int, int], step: int, /) -> None:
        self.entries.append(LoggedHistogram(name, dict(sorted(counts.items())), step))

    @override
    def log_image(self, name: str, image: Image, step: int, /) -> None:
        file = BytesIO()
        image.save(file, "PNG")
        self.entries.append(LoggedImage(name, b64encode(file.getvalue()).decode(), step))

    @override
    def log_final(self, name: str, parameters: dict[str, Any], varied: list[str], metrics: list[str], /) -> None:
        self.entries.append(LoggedResult(name, parameters, varied, metrics))

    def drain(self) -> list[LogEntry]:
        """Entries since the last call."""
        entries, self.entries = self.entries, []
        return entries


class TrialLoggers:
    """Loggers of one trial, which write the entries of its sub-epochs."""

    def __init__(self, config: Config, run_dir: Path):
        self._loggers = make_loggers(config, run_dir)

    def cut_after(self, step: int) -> None:
        """Remove entries after the step that a resumed trial continues from: they will be logged again."""
        for logger in self._loggers:
            cut_logger(logger, step)

    def write(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            for logger in self._loggers:
                _write(logger, entry)

    def finalize(self, status: str) -> None:
        for logger in self._loggers:
            call_logger(logger, logger.finalize, status)


def _write(logger: Logger, entry: LogEntry) -> None:
    if isinstance(entry, LoggedMetrics):
        call_logger(logger, logger.log_metrics, entry.metrics, entry.step)
    elif isinstance(logger, LoggerContract):
        match entry:
            case LoggedHistogram(name, counts, step):
                call_logger(logger, logger.log_histogram, name, counts, step)
            case LoggedImage(name, png, step):
                image = open_image(BytesIO(b64decode(png)), formats=["PNG"])
                call_logger(logger, logger.log_image, name, image, step)
            case LoggedResult(name, parameters, varied, metrics):
                call_logger(logger, logger.log_final, name, parameters, varied, metrics)
