"""The schema of a run's config, and reading the frozen one. No torch: a config error must not wait for its import."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from ..hardware.schema import RESUMABLE, Count, Positive, Strict, Topology
from ..runs.frozen import OpenedRun, trial_folders
from .strategy_class import Processes, declarations_before_import, processes_of
from .target_policy.untrusted_runs import restrict_values

Limit = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0.0, le=1.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Interval = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0.0, le=1.0)]
PartitionNumber = Annotated[int, Field(ge=0)]


class Target(BaseModel):
    """A class by its import path. Keys other than the fields are arguments of its constructor."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    partial: bool = Field(default=False, alias="_partial_")

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


TASK_LOADERS = "leyden.trainer.data.task_loaders.TaskLoaders"
"""`dataset._target_` with dataset=null: the loaders are the task's."""
DATA_FOLDERS = ("root", "path", "data_dir")
"""Arguments of datasets that name files."""


class AssumedData(Strict):
    """Figures of a dataset for the planner, which reads none of it; None: unknown."""

    train_samples: Count | None = None
    """Samples of an epoch."""
    classes: Count | None = None
    samples_per_second: Positive | None = None
    """That one worker reads and decodes."""


class DatasetConfig(Target):
    """A dataset class or a LightningDataModule, with the keys of its loading."""

    val_fraction: Fraction
    partitions: Count
    partition_order: list[PartitionNumber] | list[list[PartitionNumber]] | None
    num_workers: Annotated[int, Field(ge=0), RESUMABLE]
    partitioning: Literal["random", "class_balanced", "contiguous"]
    sampling: Literal["instance_balanced", "class_balanced", "square_root"]
    shuffling: Literal["global", "blocks"]
    shuffle_block: Count
    shuffle_buffer: Count
    drop_last: bool
    threads: Annotated[Literal["auto"] | Annotated[int, Field(ge=0)], RESUMABLE]
    prefetch: Annotated[int, Field(ge=0), RESUMABLE]
    cache: Literal["none", "memory", "device"]
    max_bad_samples: Annotated[int, Field(ge=0), RESUMABLE]
    check_files_s: Annotated[float, Field(ge=0.0), RESUMABLE]
    changed: Annotated[Literal["refuse", "accept"], RESUMABLE]
    """Whether the session that `leyden resume` begins may read other data than before."""
    assumed: AssumedData


class PinnedWeights(Strict):
    """Weights of a hub, as the host that froze the run has fetched them."""

    source: str
    """The name as given, timm:NAME or hub:NAME, or package:NAME."""
    path: str
    """The .safetensors file; of a package, one that torch.load reads."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def of(self, public: "PackagedWeights") -> bool:
        """Whether they are these of a package."""
        return self.source == public.source


class PackagedFile(Strict):
    """A file that an installed package brings."""

    package: Annotated[str, Field(pattern=r"^\w+$")]
    file: str
    """Path in the package."""


class PackagedWeights(PackagedFile):
    """Weights that an installed package brings."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    install: str
    """The command that installs the packages."""
    classes: PackagedFile | None = None
    """JSON: the network's output for each name of a class."""

    @property
    def source(self) -> str:
        """`PinnedWeights.source` of them."""
        return f"package:{self.package}"


class Model(Target):
    """A network. The fields are not passed to the constructor."""

    parallel: dict[str, Any] | None = None
    """How strategies may split it."""
    pretrained: str | bool | PinnedWeights | None = None
    """Initial weights; without `public_weights` true or false is an argument of the constructor."""
    public_weights: PackagedWeights | None = None
    """What `pretrained=true` takes."""
    freeze: list[str] = Field(default_factory=list)
    unfreeze_at: Count | None = None

    @property
    @override
    def arguments(self) -> dict[str, Any]:
        given = super().arguments
        if not isinstance(self.pretrained, bool) or self.public_weights is not None:
            return given
        return {**given, "pretrained": self.pretrained}

    @property
    def weights(self) -> str | PinnedWeights | None:
        """File, run or hub from which the initial weights come; None if the seed decides."""
        return None if isinstance(self.pretrained, bool) else self.pretrained


class ParameterGroup(BaseModel):
    """Parameters by name patterns. Keys other than the fields are arguments of the optimizer, for this group."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    match: str | Annotated[list[str], Field(min_length=1)]
    lr_scale: Annotated[float, Field(gt=0.0)] = 1.0

    @property
    def patterns(self) -> list[str]:
        return [self.match] if isinstance(self.match, str) else self.match

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Optimizer(Target):
    decay_bias_and_norm: bool
    groups: list[ParameterGroup] = Field(default_factory=list)
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    lr_batch_size: Count | None = None

    def batch_scale(self, batch_size: int) -> float:
        """Factor on learning rates that are meant for a batch of lr_batch_size samples."""
        return 1.0 if self.lr_batch_size is None else batch_size / self.lr_batch_size

    def scaled_arguments(self, batch_size: int) -> dict[str, Any]:
        """Arguments, with the learning rate of the global batch."""
        given = self.arguments
        if self.lr_batch_size is not None and "lr" in given:
            given["lr"] = given["lr"] * self.batch_scale(batch_size)
        return given


class Schedule(Target):
    interval: Literal["step", "epoch"]
    frequency: Count
    monitor: str | None


class Doctor(Strict):
    """`leyden doctor`: a run that measures the hardware of its topology, and trains nothing."""

    write: str | None
    """File for the topology with the measured figures."""


class Pipeline(Strict):
    """Model hopping: a run whose workers train the trials of a sweep, models moving between workers."""

    scheduler: Literal["ring", "systolic", "greedy"]
    hops: Literal["auto", "memory", "files"]
    early_stopping: Literal["none", "halving", "hyperband"]
    eta: Annotated[int, Field(ge=2)]
    min_epochs: Count
    metric: str = "val/acc"
    """Metric that early stopping compares; also the monitor of the best checkpoints."""
    mode: Literal["max", "min"] = "max"
    trials: list[str]
    """Run folders, relative to the pipeline's."""

    def folders(self, run_dir: Path) -> list[Path]:
        """Run folders of the trials; `run_dir` is the pipeline's."""
        return trial_folders(run_dir, self.trials)


class Composition(Strict):
    """Choices and overrides of the composition, which distinguish runs in tables."""

    choices: dict[str, str | None] = Field(default_factory=dict)
    """The file that each config group takes."""
    overrides: list[str] = Field(default_factory=list)
    """Overrides as typed, including those of a sweep."""
    swept: list[str] = Field(default_factory=list)
    """Keys and groups that the run's sweep varies."""


class CompileOptions(Strict):
    """`trainer.compile`: arguments of torch.compile, by its names."""

    mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    regional: bool = False
    """Compile the network's repeated blocks, once for all of one class, instead of the whole."""


class ProfilerOptions(Strict):
    """`trainer.profiler`: the optimizer steps of a session that are profiled."""

    first_step: Count = 20
    """The first of them, counted from 1: what is compiled, benchmarked and allocated once is before it."""
    steps: Annotated[int, Field(ge=1, le=100)] = 5


class Trainer(Strict):
    """Keys with the names and meanings of Lightning's Trainer.

    Leyden's own are `hang_timeout`, `async_checkpoint`, `exact_dropout`, `matmul_precision`, `compile`, `log_grad_norm`
    and `activation_checkpointing`, and the form of `profiler`.
    """

    max_epochs: Annotated[Count, RESUMABLE]
    max_steps: Annotated[int, Field(ge=-1), RESUMABLE]
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"]
    accumulate_grad_batches: Count
    gradient_clip_val: Annotated[float, Field(gt=0.0)] | None
    gradient_clip_algorithm: Literal["norm", "value", "adaptive"]
    limit_train_batches: Annotated[Limit, RESUMABLE]
    limit_val_batches: Annotated[Limit, RESUMABLE]
    limit_test_batches: Annotated[Limit, RESUMABLE]
    check_val_every_n_epoch: Annotated[Count | None, RESUMABLE]
    log_every_n_steps: Annotated[Count, RESUMABLE]
    fast_dev_run: bool
    deterministic: bool
    sync_batchnorm: bool
    compile: bool | CompileOptions
    channels_last: bool
    enable_progress_bar: Annotated[bool, RESUMABLE]
    hang_timeout: Annotated[Annotated[float, Field(gt=0.0)] | None, RESUMABLE]
    async_checkpoint: bool
    val_check_interval: Annotated[Interval | None, RESUMABLE]
    num_sanity_val_steps: Annotated[int, Field(ge=-1)]
    overfit_batches: Limit
    max_time: Annotated[str | dict[str, int | float] | None, RESUMABLE]
    detect_anomaly: Annotated[bool, RESUMABLE]
    exact_dropout: bool
    benchmark: bool
    matmul_precision: Literal["highest", "high", "medium"] | None
    profiler: ProfilerOptions | None
    activation_checkpointing: bool | Annotated[list[str], Field(min_length=1)]
    log_grad_norm: bool

    @property
    def reads_gradients(self) -> bool:
        """Whether a step's gradients are read, unscaled, before the optimizer's step."""
        return self.log_grad_norm or self.gradient_clip_val is not None

    @property
    def train_limit(self) -> int | float:
        """limit_train_batches, unless overfit_batches takes its place."""
        return self.overfit_batches or self.limit_train_batches

    @property
    def val_limit(self) -> int | float:
        """limit_val_batches, unless overfit_batches takes its place."""
        return self.overfit_batches or self.limit_val_batches


class Config(Strict):
    """The resolved config of a run, as `config.yaml` in its folder holds it."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    batch_size: Count
    tags: list[str]
    init_from: str | None
    dataset: DatasetConfig
    augment: Target | None = None
    model: Model | None = None
    task: Target
    strategy: Annotated[Target, RESUMABLE]
    topology: Annotated[Topology, RESUMABLE]
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    callbacks: dict[str, Target | None]
    logger: dict[str, Target | None]
    trainer: Trainer
    python_path: list[str] = Field(default_factory=list)
    """Folders appended to sys.path in every worker: the command's working directory, and --config-dir."""
    composition: Composition = Composition()
    """Written when the config is frozen."""
    doctor: Doctor | None = None
    """Settings of `leyden doctor`; None if the run trains."""
    pipeline: Pipeline | None = None
    """Trials of a hopping run; None if the run trains a model of its own."""
    processes: Processes | None = None
    """Processes declared by the strategy's class, see `with_processes`; None: not computed yet."""

    @property
    def _processes(self) -> Processes:
        return self.processes or Processes(workers=self.topology.workers)

    @property
    def worker_processes(self) -> int:
        """Worker processes to start; one if it simulates all workers."""
        return self._processes.workers

    @property
    def servers(self) -> int:
        """Processes next to the workers that hold parameters."""
        return self._processes.servers

    @property
    def elastic(self) -> bool:
        """Whether workers come and go while the servers stay."""
        return self._processes.elastic

    @property
    def simulated(self) -> bool:
        """Whether one process simulates all workers."""
        return self._processes.simulated

    @property
    def launcher(self) -> str:
        """What starts the processes: topology.launcher, or `local` for a simulation."""
        return "local" if self.simulated else self.topology.launcher


EVALUATION_DEVICE = "LEYDEN_EVALUATION_DEVICE"
"""Environment variable that passes `leyden eval RUN topology.device.kind=...` to workers: eval writes no file."""
EVALUATION_DATASET = "LEYDEN_EVALUATION_DATASET"
"""Environment variable that passes `leyden eval RUN dataset=...`: in JSON the nodes that differ, and the own data."""


def with_processes(config: Config) -> Config:
    """The config with the processes declared by its strategy's class, which is imported unless it is one of Leyden's.

    Raises:
        ValueError: there is no such class.
    """
    strategy = config.strategy
    processes = processes_of(strategy.target, strategy.arguments, config.topology, config.python_path)
    return config.model_copy(update={"processes": processes})


def with_processes_known_before_import(config: Config) -> Config:
    """The config with its processes if the strategy is one of Leyden's, else without."""
    is_known = declarations_before_import(config.strategy.target) is not None
    return with_processes(config) if is_known else config.model_copy(update={"processes": None})


def with_processes_node(values: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a validated config, with the node `processes` that is frozen."""
    processes = with_processes(Config.model_validate(values)).processes
    assert processes is not None
    return {**values, "processes": processes.model_dump()}


def load(run_dir: Path) -> Config:
    """The config of a run, as its workers read it.

    Raises:
        ConfigError: the run is another user's, and names what only --trust allows.
    """
    with OpenedRun(run_dir) as opened:
        values = opened.values()
    kind = os.environ.get(EVALUATION_DEVICE)
    if kind is not None:
        values["topology"]["device"]["kind"] = kind
    if os.environ.get(EVALUATION_DATASET):
        values |= json.loads(os.environ[EVALUATION_DATASET])["values"]
    config = Config.model_validate(restrict_values(values, run_dir, opened.owners))
    # absent after a change of the topology by hand
    return config if config.processes is not None else with_processes(config)


def workers_on_node(config: Config) -> int:
    """Number of workers on one machine, each with its own device."""
    return 1 if config.worker_processes == 1 else config.topology.devices_per_node
