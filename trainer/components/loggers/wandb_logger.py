"""Weights & Biases."""

import os
import socket
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger
from PIL.Image import Image
from typing_extensions import override

from ...base.log import log
from ...base.paths import shorten_path
from ...core.loggers.contract import LoggerContract
from .run_config import run_config, run_name

_CONNECT_S = 3.0


class WandB(LoggerContract, WandbLogger):
    """Lightning's logger with the run's config, its images, and a choice between online and offline.

    Args:
        save_dir: the run folder; what is offline lies in its subfolder wandb.
        project: project at W&B.
        name: of the run there; None: that of the run folder.
        entity: user or team; None: the one of the API key.
        offline: None: WANDB_MODE decides; without it, offline where there is no API key or no connection.
        id: of a run that goes on.
    """

    def __init__(
        self,
        save_dir: str,
        project: str = "leyden",
        name: str | None = None,
        entity: str | None = None,
        offline: bool | None = None,
        id: str | None = None,
    ):
        super().__init__(name=name or run_name(save_dir), save_dir=save_dir, project=project, id=id)
        self._wandb_init["entity"] = entity
        self._wandb_init.pop("anonymous", None)  # W&B warns of it, whatever its value
        self._folder = Path(save_dir)
        self._chosen = offline

    @property
    @override
    def experiment(self) -> Any:
        """W&B's run, begun by the first entry."""
        if self._experiment is not None or rank_zero_only.rank != 0:  # pyright: ignore[reportFunctionMemberAccess]
            return super().experiment
        offline = self._chosen
        if offline is None and "WANDB_MODE" not in os.environ:
            reason = _why_offline()
            offline = reason is not None
            if offline:
                text = "W&B: %s: offline; later: wandb sync %s/wandb/offline-run-*"
                log.info(text, reason, shorten_path(self._folder))
        if offline is not None:
            self._wandb_init["mode"] = "offline" if offline else "online"
        begun = super().experiment
        begun.config.update(run_config(self._folder), allow_val_change=True)
        return begun

    @override
    @rank_zero_only
    def log_image(self, key: str, images: Image | list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Log an image, or several as Lightning's method does."""
        WandbLogger.log_image(self, key, images if isinstance(images, list) else [images], step, **kwargs)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Finish the run: the next one of this process begins another."""
        if self._experiment is not None:
            self._id = self._experiment.id
            self._wandb_init["id"] = self._id
            self._experiment.finish(exit_code=int(status == "failed"))
            self._experiment = None


def _why_offline() -> str | None:
    """The reason for which nothing can be sent, or None."""
    address = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if not _has_key(host):
        return "no API key (WANDB_API_KEY, or wandb login)"
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        return f"{host} cannot be reached ({error})"
    return None


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
