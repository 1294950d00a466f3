"""What the trials of a sweep have in common when their models share workers. No torch: it is judged before all else."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from pydantic import ValidationError

from ..checks import check_values
from ..compose import Composer
from ..config import Config, Pipeline
from ..errors import Problem, listed, raise_all, refuse
from ..leftover_keys import drop
from ..signatures import is_a
from ..sweep_results import Metric
from ..targets import locate
from ..validation import validated

LAUNCHER = "leyden.trainer.pipeline.launcher.PipelineLauncher"
_SHARED = ("topology", "dataset", "hydra.job.env_set")
_ALONE = "leyden.trainer.strategies.single.Single"


def is_pipeline(composed: DictConfig) -> bool:
    """Whether a composition chooses hydra/launcher=pipeline."""
    return (composed.hydra.launcher or {}).get("_target_") == LAUNCHER


class Plan:
    """One pipeline from the compositions of its trials.

    Each trial is a run of one worker over all partitions; the workers that the user's topology names are the
    pipeline's.

    Args:
        settings: the node hydra.launcher.

    Raises:
        ConfigError: a key of it is wrong.
    """

    def __init__(self, composer: Composer, settings: DictConfig):
        self._composer = composer
        self._settings = {name: value for name, value in settings.items() if name != "_target_"}
        self._values: dict[str, Any] | None = None
        """Of the pipeline's own run."""
        self._shared: dict[str, Any] = {}
        self._shared_by = ""
        raise_all(self._mistakes())

    def _mistakes(self) -> Iterator[Problem]:
        try:
            Pipeline.model_validate({**self._settings, "trials": []})
        except ValidationError as error:
            for detail in error.errors():
                key = ".".join(map(str, detail["loc"]))
                yield Problem(f"hydra.launcher.{key}", detail["msg"].lower(), self._settings.get(key, ...))

    def adapt(self, composed: DictConfig, trial: str) -> None:
        """Make a trial's composition one of a run with one worker.

        Raises:
            ConfigError: it cannot be trained beside the others.
        """
        raise_all([*_unfit(composed), *_of_one_process(composed), *self._not_compared(composed)])
        workers = int(composed.topology.nodes) * int(composed.topology.devices_per_node)
        if self._values is None:
            self._values = self._own_values(composed)
        with read_write(composed), open_dict(composed):
            if composed.dataset.partitions == 1:
                composed.dataset.partitions = workers
            self._same(composed, trial)
            # where Slurm starts the pipeline, it starts a trial that is later resumed or evaluated by itself, too
            launcher = "slurm" if composed.topology.launcher == "slurm" else "local"
            composed.topology.update(nodes=1, devices_per_node=1, launcher=launcher, max_restarts=0)
            composed.trainer.enable_progress_bar = False
        if composed.dataset.partitions < workers:
            text = f"is less than the {workers} workers: some would have nothing to train on"
            raise refuse("dataset.partitions", text, composed.dataset.partitions, f"dataset.partitions={workers}")

    def _not_compared(self, composed: DictConfig) -> Iterator[Problem]:
        every = composed.trainer.check_val_every_n_epoch
        if self._settings["early_stopping"] != "none" and every != 1:
            text = "leaves epochs without the value that hydra.launcher.early_stopping compares"
            yield Problem("trainer.check_val_every_n_epoch", text, every, "trainer.check_val_every_n_epoch=1")
        interval = composed.trainer.val_check_interval
        if self._settings["early_stopping"] != "none" and interval is not None:
            text = "may leave an epoch's end without the value that hydra.launcher.early_stopping compares"
            yield Problem("trainer.val_check_interval", text, interval, "trainer.val_check_interval=null")

    def _own_values(self, composed: DictConfig) -> dict[str, Any]:
        """The plain values of the run that the workers of the pipeline obey, but for its trials.

        Raises:
            ConfigError: its topology cannot run here.
        """
        values = self._composer.frozen(composed)
        # nothing is trained by it; the strategy must only suit the number of workers
        ddp = self._composer.loader.load_configuration("train", ["strategy=ddp"], composed.hydra.mode)
        strategy = {str(key): value for key, value in ddp.strategy.items()}
        values = {**values, "strategy": strategy, "init_from": None}
        values["dataset"] = {**values["dataset"], "partitions": 1}
        values["pipeline"] = {**self._settings, **_compared(values), "trials": []}
        config = validated(values)
        check_values(config)
        return values

    def _same(self, composed: DictConfig, trial: str) -> None:
        shared = {key: _resolved(OmegaConf.select(composed, key)) for key in _SHARED}
        if not self._shared:
            self._shared, self._shared_by = shared, trial
        for key, node in shared.items():
            first = self._shared[key]
            own = [f"{key}.{name}" for name in {**node, **first} if node.get(name) != first.get(name)]
            if own:
                text = f"is not that of {self._shared_by}, and the models of a pipeline share workers and data"
                raise refuse(key, text, remedy=f"one value of {listed(own)} for all, or hydra/launcher=basic")

    def check_class(self, config: Config) -> None:
        """
        Raises:
            ConfigError: its data has no partitions.
        """
        if is_a(locate(config.dataset.target), "LightningDataModule"):
            text = "is a LightningDataModule, whose loaders say themselves what they read: it has no partitions"
            raise refuse("dataset", text, config.dataset.target, "a dataset, or hydra/launcher=basic")

    def drop(self, keys: Sequence[str]) -> None:
        """Leave out keys that a trial's classes do not take."""
        drop(self._values, keys)

    @property
    def topology(self) -> dict[str, Any]:
        """The workers', as plain values."""
        assert self._values is not None
        return self._values["topology"]

    def values(self, trials: Sequence[Path], run_dir: Path) -> dict[str, Any]:
        """What is frozen for the workers in `run_dir`; a sweep may be moved, with all that is in it."""
        assert self._values is not None
        relative = [os.path.relpath(trial, run_dir) for trial in trials]
        return {**self._values, "pipeline": {**self._values["pipeline"], "trials": relative}}


def _resolved(node: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _compared(values: dict[str, Any]) -> dict[str, str]:
    """By what early stopping compares trials."""
    by = Metric.of((values.get("callbacks") or {}).get("checkpoint") or {})
    return {"metric": by.name, "mode": by.mode}


_NOT_HOPPING = (
    ("max_time", None, "is the time of one training, and a model of a pipeline waits for workers in between"),
    ("overfit_batches", 0.0, "trains on the first batches alone, and a model of a pipeline visits every partition"),
)
"""Keys of the trainer, what they must be in a pipeline, and why."""


def _unfit(composed: DictConfig) -> Iterator[Problem]:
    target = composed.strategy.get("_target_")
    if target != _ALONE:
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


def _of_one_process(composed: DictConfig) -> Iterator[Problem]:
    """What Hydra does for a job that has a process of its own."""
    if composed.hydra.job.chdir:
        text = "takes a job to its folder, and the models of a pipeline share processes"
        yield Problem("hydra.job.chdir", text, True, "hydra.job.chdir=null, or hydra/launcher=basic")
