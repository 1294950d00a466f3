"""Trackio."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from PIL.Image import Image
from typing_extensions import override

from ...core.loggers.contract import LoggerContract
from .run_config import run_config, run_name


class Trackio(LoggerContract, Logger):
    """Metrics in Trackio's local database (TRACKIO_DIR), or in a Space of Hugging Face's; Lightning has no such logger.

    Args:
        save_dir: the run folder.
        project: project in Trackio.
        id: name of the run; None: that of the run folder.
        space_id: the Space; None: local.
    """

    def __init__(self, save_dir: str, project: str = "leyden", space_id: str | None = None, id: str | None = None):
        super().__init__()
        self._folder = Path(save_dir)
        self._project, self._space = project, space_id
        self._id = id or run_name(save_dir).replace("/", "-")
        self._run: Any = None

    @property
    @override
    def name(self) -> str:
        return self._project

    @property
    @override
    def version(self) -> str:
        return self._id

    @property
    def experiment(self) -> Any:
        """Trackio's run, begun by the first entry; it goes on with one of the same name."""
        if self._run is None:
            import trackio  # pyright: ignore[reportMissingImports]  # an extra

            self._run = trackio.init(
                self._project, name=self._id, space_id=self._space, config=run_config(self._folder), resume="allow",
                embed=False,
            )  # fmt: skip
        return self._run

    @override
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run's config is there from the beginning."""

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    @override
    @rank_zero_only
    def log_image(self, name: str, image: Image, step: int, /) -> None:
        """Log an image."""
        import trackio  # pyright: ignore[reportMissingImports]

        self.experiment.log({name: trackio.Image(image)}, step=step)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
