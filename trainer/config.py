"""The schema of a run's config, and reading the frozen one. No torch: a config error must cost no second."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from .hardware import Device, Fabric, Host, Links, Slurm
from .run_folder import absolute
from .strict import Count, Strict

Limit = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0.0, le=1.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Interval = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0.0, le=1.0)]
PartitionNumber = Annotated[int, Field(ge=0)]


class Target(BaseModel):
    """A class by its import path. Keys that no field names are arguments of its constructor."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    partial: bool = Field(default=False, alias="_partial_")

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


TASK_LOADERS = "leyden.trainer.task_loaders.TaskLoaders"
"""What `dataset._target_` is where the task brings its loaders (dataset=null)."""


class Dataset(Target):
    """A dataset class, or a LightningDataModule, and how it is read."""

    val_fraction: Fraction
    partitions: Count
    partition_order: list[PartitionNumber] | list[list[PartitionNumber]] | None
    num_workers: Annotated[int, Field(ge=0)]
    max_bad_samples: Annotated[int, Field(ge=0)]


class Model(Target):
    """A network. `parallel` says how strategies may split it; the constructor never sees it."""

    parallel: dict[str, Any] | None = None


class Optimizer(Target):
    decay_bias_and_norm: bool


class Schedule(Target):
    interval: Literal["step", "epoch"]
    frequency: Count
    monitor: str | None


class Topology(Strict):
    """The hardware there is, and what starts the workers on it."""

    launcher: Literal["local", "node", "slurm"]
    nodes: Count
    devices_per_node: Count
    device: Device
    # Runs that were frozen before there were these keys do not have them.
    max_restarts: Annotated[int, Field(ge=0)] = 0
    server_placement: Literal["one_a_node", "first_node"] = "one_a_node"
    links: Links = Links()
    fabric: Fabric = Fabric()
    host: Host = Host()
    slurm: Slurm = Slurm()

    @property
    def workers(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def usual_servers(self) -> int:
        """Parameter servers where the strategy does not say how many."""
        return 1 if self.server_placement == "first_node" else self.nodes

    def server_node(self, server: int) -> int:
        """The node that a parameter server runs on."""
        return 0 if self.server_placement == "first_node" else server % self.nodes


class Doctor(Strict):
    """A run that measures the hardware of its topology, and trains nothing: `leyden doctor`."""

    write: str | None
    """File that the topology is written to, with the measured figures in place."""


class Pipeline(Strict):
    """A run that trains nothing itself: its workers train the trials of a sweep, whose models move between them."""

    scheduler: Literal["ring", "systolic", "greedy"]
    hops: Literal["auto", "memory", "files"]
    early_stopping: Literal["none", "halving", "hyperband"]
    eta: Annotated[int, Field(ge=2)]
    min_epochs: Count
    metric: str = "val/acc"
    """What early stopping compares; that by which the best checkpoints are kept."""
    mode: Literal["max", "min"] = "max"
    trials: list[str]
    """Run folders, as seen from the pipeline's own."""

    def folders(self, run_dir: Path) -> list[Path]:
        """Those of the trials, `run_dir` being the pipeline's."""
        return _folders(run_dir, self.trials)


class Composition(Strict):
    """What was chosen when the run was composed: by it tables of several runs tell them apart."""

    choices: dict[str, str | None] = Field(default_factory=dict)
    """The file that each config group takes."""
    overrides: list[str] = Field(default_factory=list)
    """As they were typed, those that a sweep adds included."""
    swept: list[str] = Field(default_factory=list)
    """Keys and groups that the run's sweep varies."""


class Trainer(Strict):
    """Keys and meanings are those of Lightning's Trainer; `hang_timeout` is our own."""

    max_epochs: Count
    max_steps: Annotated[int, Field(ge=-1)]
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"]
    accumulate_grad_batches: Count
    gradient_clip_val: Annotated[float, Field(gt=0.0)] | None
    gradient_clip_algorithm: Literal["norm", "value"]
    limit_train_batches: Limit
    limit_val_batches: Limit
    limit_test_batches: Limit
    check_val_every_n_epoch: Count | None
    log_every_n_steps: Count
    fast_dev_run: bool
    deterministic: bool
    sync_batchnorm: bool
    compile: bool
    channels_last: bool
    enable_progress_bar: bool
    # Runs that were frozen before there were these keys do not have them.
    hang_timeout: Annotated[float, Field(gt=0.0)] | None = None
    val_check_interval: Interval | None = None
    num_sanity_val_steps: Annotated[int, Field(ge=-1)] = 0
    overfit_batches: Limit = 0.0
    max_time: str | dict[str, int | float] | None = None
    detect_anomaly: bool = False

    @property
    def train_limit(self) -> int | float:
        """limit_train_batches, unless overfit_batches takes its place."""
        return self.overfit_batches or self.limit_train_batches

    @property
    def val_limit(self) -> int | float:
        """limit_val_batches, unless overfit_batches takes its place."""
        return self.overfit_batches or self.limit_val_batches


class Config(Strict):
    """One training, resolved: what `config.yaml` in a run folder holds."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    batch_size: Count
    tags: list[str]
    init_from: str | None
    dataset: Dataset
    augment: Target | None = None
    model: Model | None = None
    task: Target
    strategy: Target
    topology: Topology
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    callbacks: dict[str, Target | None]
    logger: dict[str, Target | None]
    trainer: Trainer
    python_path: list[str] = Field(default_factory=list)
    """Folders appended to sys.path in every worker: where the command was given, and --config-dir."""
    composition: Composition = Composition()
    """Written when the config is frozen; runs that were frozen before there was this key do not have it."""
    doctor: Doctor | None = None
    """None: the run trains."""
    pipeline: Pipeline | None = None
    """None: the run trains a model of its own."""

    @property
    def processes(self) -> int:
        """Worker processes to start: one where the strategy acts all workers in it."""
        return 1 if self.simulated else self.topology.workers

    @property
    def servers(self) -> int:
        """Processes beside the workers that hold parameters."""
        arguments = self.strategy.arguments
        if self.simulated or arguments.get("form", "server") != "server":
            return 0
        given = arguments.get("servers", 0)
        return self.topology.usual_servers if given is None else int(given)

    @property
    def elastic(self) -> bool:
        """Whether workers come and go while the servers stay."""
        return self.servers > 0 and bool(self.strategy.arguments.get("elastic"))

    @property
    def simulated(self) -> bool:
        """Whether one process acts all workers."""
        return bool(self.strategy.arguments.get("simulate"))

    @property
    def launcher(self) -> str:
        """What starts the processes; that of a simulation is the command's own, whatever the topology."""
        return "local" if self.simulated else self.topology.launcher


def frozen_values(run_dir: Path) -> dict[str, Any]:
    """The run's config as plain values: the frozen one, then what each `leyden resume` changed, in order."""
    values = _read(run_dir / "config.yaml")
    for changed in changes_of(run_dir):
        for key, value in changed.items():
            *parents, last = key.split(".")
            node = values
            for parent in parents:
                node = node[parent]
            node[last] = value
    return values


def changes_of(run_dir: Path) -> list[dict[str, Any]]:
    """Keys and values that each `leyden resume` of the run has changed, the newest last."""
    file = run_dir / "resume.yaml"
    return [change["changed"] for change in _read(file)] if file.exists() else []


def trials_in(run_dir: Path) -> list[Path]:
    """The trials whose models share the workers of a run; none where it trains a model of its own."""
    pipeline = frozen_values(run_dir).get("pipeline")
    return [] if pipeline is None else _folders(run_dir, pipeline["trials"])


def _folders(run_dir: Path, trials: Sequence[str]) -> list[Path]:
    return [absolute(run_dir / trial) for trial in trials]


def _read(file: Path) -> Any:
    # libyaml's loader, where PyYAML was built with it, is ten times as fast
    return yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


EVALUATION_DEVICE = "LEYDEN_EVALUATION_DEVICE"
"""Environment variable: how `leyden eval RUN topology.device.kind=...` tells its workers; no file of the run does."""


def load(run_dir: Path) -> Config:
    """The config that the workers of a run obey."""
    values = frozen_values(run_dir)
    kind = os.environ.get(EVALUATION_DEVICE)
    if kind is not None:
        values["topology"]["device"]["kind"] = kind
    return Config.model_validate(values)
