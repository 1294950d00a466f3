"""Loggers for tests of what the loop does with those that are not its own."""

from typing import Any

from lightning.fabric.loggers import CSVLogger, Logger
from PIL.Image import Image
from typing_extensions import override

from leyden.trainer.core.loggers.contract import LoggerContract


class Failing(Logger):
    """Fails in every call."""

    @property
    def name(self) -> str:
        return "failing"

    @property
    def version(self) -> None:
        return None

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such service")

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise RuntimeError("no such service")

    def finalize(self, status: str) -> None:
        raise RuntimeError("no such service")


class Foreign(Failing):
    """Has methods of the names of Leyden's, with other parameters."""

    def log_image(self, key: str, images: list[Any]) -> None:
        raise AssertionError

    def log_histogram(self, values: list[float]) -> None:
        raise AssertionError


class Keeps(LoggerContract, CSVLogger):
    """Keeps the names of images; an error of it ends the run."""

    essential = True

    def __init__(self, root_dir: str):
        super().__init__(root_dir)
        self.images: list[tuple[str, int]] = []

    @override
    def log_image(self, name: str, image: Image, step: int, /) -> None:
        self.images.append((name, step))


class NotesStatus(Keeps):
    """Writes what it is finalized with into `status` of the run's folder."""

    @override
    def finalize(self, status: str) -> None:
        super().finalize(status)
        with open(f"{self.root_dir}/status", "a") as file:
            file.write(status)


class Misspelt(Keeps):
    def log_images(self, name: str, image: Image, step: int) -> None: ...


class Plain(Failing):
    def cut_after(self, step: int) -> None: ...
