"""Loggers for tests of what the loop does with those that are not its own."""

from typing import Any

from lightning.fabric.loggers import Logger


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
