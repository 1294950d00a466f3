"""MLflow."""

import os
from collections.abc import Mapping
from pathlib import Path

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import MLFlowLogger
from PIL.Image import Image
from typing_extensions import override

from ...core.loggers.contract import LoggerContract
from . import run_config

_LONGEST = 6000
"""Characters of a parameter that MLflow keeps."""


class MLflow(LoggerContract, MLFlowLogger):
    """Lightning's logger with the run's config and its images.

    Args:
        save_dir: the run folder.
        experiment_name: experiment that the run belongs to.
        run_name: None: that of the run folder.
        tracking_uri: a server or a store; None: MLFLOW_TRACKING_URI, without it files in the run folder's mlruns.
        run_id: of a run that goes on.
    """

    def __init__(
        self,
        save_dir: str,
        experiment_name: str = "leyden",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
    ):
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file:{Path(save_dir).absolute() / 'mlruns'}"
        if "://" not in uri:
            # MLflow 3 refuses stores of files, which need no server, unless it is told not to
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        name = run_name or run_config.run_name(save_dir)
        super().__init__(experiment_name=experiment_name, run_name=name, tracking_uri=uri, run_id=run_id)
        self._folder = Path(save_dir)
        self._described = run_id is not None  # MLflow refuses another value of a parameter

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._described:
            self._described = True
            self.log_hyperparams(
                {key: str(value)[:_LONGEST] for key, value in run_config.flat_config(self._folder).items()}
            )
        super().log_metrics(metrics, step)

    @override
    @rank_zero_only
    def log_image(self, name: str, image: Image, step: int, /) -> None:
        """Log an image."""
        self.experiment.log_image(self.run_id, image, key=name, step=step)
