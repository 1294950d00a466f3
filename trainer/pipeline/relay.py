"""Loggers of models that train in turns at several workers: what is logged travels, and is written in one place."""

from argparse import Namespace
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from lightning.fabric.loggers import Logger
from PIL.Image import Image
from PIL.Image import open as open_image

from ..assemble import make_loggers
from ..config import Config


class Relay(Logger):
    """Keeps what is logged during a visit as plain values."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[list[Any]] = []
        """[method, arguments...]."""

    @property
    def name(self) -> str:
        return "relay"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They stand in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.entries.append(["log_metrics", {name: float(value) for name, value in metrics.items()}, step])

    def log_histogram(self, name: str, counts: Mapping[int, int], step: int) -> None:
        self.entries.append(["log_histogram", name, sorted(counts.items()), step])

    def log_image(self, name: str, image: Image, step: int) -> None:
        file = BytesIO()
        image.save(file, "PNG")
        self.entries.append(["log_image", name, b64encode(file.getvalue()).decode(), step])

    def log_final(self, name: str, parameters: dict[str, Any], varied: list[str], metrics: list[str]) -> None:
        self.entries.append(["log_final", name, parameters, varied, metrics])

    def taken(self) -> list[list[Any]]:
        """The entries since the last call."""
        entries, self.entries = self.entries, []
        return entries


class TrialLoggers:
    """The loggers of one trial, fed with what its visits have logged."""

    def __init__(self, config: Config, run_dir: Path):
        self._loggers = make_loggers(config, run_dir)

    def cut_after(self, step: int) -> None:
        """What was logged after the step that a resumed trial goes on from will be logged again."""
        for logger in self._loggers:
            if hasattr(logger, "cut_after"):
                logger.cut_after(step)  # pyright: ignore[reportAttributeAccessIssue]

    def write(self, entries: Iterable[list[Any]]) -> None:
        for method, *arguments in entries:
            if method == "log_histogram":
                arguments[1] = dict(arguments[1])
            elif method == "log_image":
                arguments[1] = open_image(BytesIO(b64decode(arguments[1])), formats=["PNG"])
            for logger in self._loggers:
                if hasattr(logger, method):
                    getattr(logger, method)(*arguments)

    def close(self) -> None:
        for logger in self._loggers:
            logger.finalize("success")
