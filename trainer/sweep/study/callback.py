"""Callback of a trial that reports to the study of its sweep. No Optuna: the trials of every sweep import this."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

_KEY = "callbacks.optuna_pruning"


def add_callback(composed: DictConfig, node: Mapping[str, Any] | None) -> None:
    """Add the node of a trial's callback to its composition; None: nothing is pruned."""
    if node is not None:
        with read_write(composed), open_dict(composed):
            OmegaConf.update(composed, _KEY, dict(node))
