"""Plan of a hopping run: validates that trials can share workers, composes their common config. No torch."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from pydantic import ValidationError

from ..base.errors import Problem, join_names, raise_all, refuse
from ..compose.checks import check_values
from ..compose.composer import Composer
from ..compose.hydra_node import LAUNCHER
from ..compose.leftover_keys import drop
from ..compose.validation import validate_values
from ..config.locate import locate
from ..config.schema import Config, Pipeline, with_processes_node
from ..config.strategy_class import declarations_before_import
from ..config.targets import is_a
from .results import Metric

_SHARED = ("topology", "dataset", "hydra.job.env_set")


def is_pipeline(composed: DictConfig) -> bool:
    """Whether a composition chooses hydra/launcher=pipeline."""
    return (composed.hydra.launcher or {}).get("_target_") == LAUNCHER


class HoppingPlan:
    """Config of one hopping run, from the compositions of its trials.

    Each trial is frozen as a run of one worker over all partitions, so that it can be resumed or evaluated by itself;
    the workers of the user's topology are those of the hopping run.

    Args:
        settings: the node hydra.launcher.

    Raises:
        ConfigError: a key of it is wrong.
    """

    def __init__(self, composer: Composer, settings: DictConfig):
        self._composer = composer
        self._settings = {name: value for name, value in settings.items() if name != "_target_"}
        self._values: dict[str, Any] | None = None
        """Values of the hopping run."""
        self._shared: dict[str, Any] = {}
        self._first_trial = ""
        raise_all(self._problems())

    def _problems(self) -> Iterator[Problem]:
        try:
            Pipeline.model_validate({**self._settings, "trials": []})
        except ValidationError as error:
            for detail in error.errors():
                key = ".".join(map(str, detail["loc"]))
                yield Problem(f"hydra.launcher.{key}", detail["msg"].lower(), self._settings.get(key, ...))

    def adapt(self, composed: DictConfig, trial: str) -> None:
        """Change a trial's composition to a run of one worker.

        Raises:
            ConfigError: it cannot be trained by model hopping with the others.
        """
        raise_all([*_incompatible(composed), *_needs_own_process(composed), *self._missing_metrics(composed)])
        workers = int(composed.topology.nodes) * int(composed.topology.devices_per_node)
        if self._values is None:
            self._values = self._common_values(composed)
        with read_write(composed), open_dict(composed):
            if composed.dataset.partitions == 1:
                composed.dataset.partitions = workers
            self._check_shared(composed, trial)
            # a trial resumed or evaluated by itself is started as the hopping run is
            launcher = "slurm" if composed.topology.launcher == "slurm" else "local"
            composed.topology.update(nodes=1, devices_per_node=1, launcher=launcher, max_restarts=0)
            composed.trainer.enable_progress_bar = False
        if composed.dataset.partitions < workers:
            text = f"is less than the {workers} workers: some would have nothing to train on"
            raise refuse("dataset.partitions", text, composed.dataset.partitions, f"dataset.partitions={workers}")

    def _missing_metrics(self, composed: DictConfig) -> Iterator[Problem]:
        every = composed.trainer.check_val_every_n_epoch
        if self._settings["early_stopping"] != "none" and every != 1:
            text = "leaves epochs without the value that hydra.launcher.early_stopping compares"
            yield Problem("trainer.check_val_every_n_epoch", text, every, "trainer.check_val_every_n_epoch=1")
        interval = composed.trainer.val_check_interval
        if self._settings["early_stopping"] != "none" and interval is not None:
            text = "may leave an epoch's end without the value that hydra.launcher.early_stopping compares"
            yield Problem("trainer.val_check_interval", text, interval, "trainer.val_check_interval=null")

    def _common_values(self, composed: DictConfig) -> dict[str, Any]:
        """Plain values of the hopping run's config, without its trials.

        Raises:
            ConfigError: its topology cannot run here.
        """
        values = self._composer.freeze_values(composed)
        # the strategy is not used, but must accept the number of workers
        ddp = self._composer.loader.load_configuration("train", ["strategy=ddp"], composed.hydra.mode)
        strategy = {str(key): value for key, value in ddp.strategy.items()}
        values = {**values, "strategy": strategy, "init_from": None}
        values["model"] = {**values["model"], "pretrained": None} if values["model"] else None
        values["dataset"] = {**values["dataset"], "partitions": 1}
        values["pipeline"] = {**self._settings, **_comparison(values), "trials": []}
        config = validate_values(values)
        check_values(config)
        return with_processes_node(values)

    def _check_shared(self, composed: DictConfig, trial: str) -> None:
        shared = {key: _resolve(OmegaConf.select(composed, key)) for key in _SHARED}
        if not self._shared:
            self._shared, self._first_trial = shared, trial
        for key, node in shared.items():
            first = self._shared[key]
            own = [f"{key}.{name}" for name in {**node, **first} if node.get(name) != first.get(name)]
            if own:
                text = f"is not that of {self._first_trial}, and the models of a pipeline share workers and data"
                raise refuse(key, text, remedy=f"one value of {join_names(own)} for all, or hydra/launcher=basic")

    def check_class(self, config: Config) -> None:
        """
        Raises:
            ConfigError: its data has no partitions.
        """
        if is_a(locate(config.dataset.target), "LightningDataModule"):
            text = "is a LightningDataModule, whose own loaders decide what is read: it has no partitions"
            raise refuse("dataset", text, config.dataset.target, "a dataset, or hydra/launcher=basic")

    def drop(self, keys: Sequence[str]) -> None:
        """Remove keys that a trial's classes do not take."""
        drop(self._values, keys)

    @property
    def topology(self) -> dict[str, Any]:
        """Topology of the hopping run, as plain values."""
        assert self._values is not None
        return self._values["topology"]

    def values(self, trials: Sequence[Path], run_dir: Path) -> dict[str, Any]:
        """Values to freeze in `run_dir`. Paths of trials are relative: a sweep's folder may be moved."""
        assert self._values is not None
        relative = [os.path.relpath(trial, run_dir) for trial in trials]
        return {**self._values, "pipeline": {**self._values["pipeline"], "trials": relative}}


def _resolve(node: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _comparison(values: dict[str, Any]) -> dict[str, str]:
    """Metric and mode by which early stopping compares trials."""
    by = Metric.of((values.get("callbacks") or {}).get("checkpoint") or {})
    return {"metric": by.name, "mode": by.mode}


_NOT_HOPPING = (
    ("max_time", None, "is the time of one training, and a model of a pipeline waits for workers in between"),
    ("overfit_batches", 0.0, "trains on the first batches alone, and a model of a pipeline visits every partition"),
)
"""Keys of the trainer, the value that model hopping requires, and why."""


def _incompatible(composed: DictConfig) -> Iterator[Problem]:
    target = str(composed.strategy.get("_target_"))
    declared = declarations_before_import(target)
    if declared is None or declared.max_workers != 1:
        text = "splits one model over workers, and each model of a pipeline trains on one at a time"
        yield Problem("strategy", text, composed.hydra.runtime.choices.get("strategy", target), "strategy=single")
    if composed.dataset.partition_order is not None:
        text = "is decided by hydra.launcher.scheduler"
        yield Problem("dataset.partition_order", text, composed.dataset.partition_order, "dataset.partition_order=null")
    for key, none, text in _NOT_HOPPING:
        value = composed.trainer[key]
        if value != none:
            yield Problem(f"trainer.{key}", text, value, f"trainer.{key}={'null' if none is None else none}")
    if composed.trainer.fast_dev_run:
        remedy = "trainer.max_epochs=1, or hydra/launcher=basic"
        yield Problem("trainer.fast_dev_run", "makes one step, and nothing of it would hop", True, remedy)


def _needs_own_process(composed: DictConfig) -> Iterator[Problem]:
    """Settings of Hydra that need a process for each job."""
    if composed.hydra.job.chdir:
        text = "takes a job to its folder, and the models of a pipeline share processes"
        yield Problem("hydra.job.chdir", text, True, "hydra.job.chdir=null, or hydra/launcher=basic")
