"""RunState: the objects and counters of a training. Callbacks receive it; checkpoints are written from it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from PIL.Image import Image
from torch.optim import Optimizer

from ..base.device_copy import numbers_on_device
from ..base.heartbeat import heartbeat
from ..base.signals import StopRequest
from ..base.time_limit import TimeLimit
from ..config.schema import Config
from ..runs.sessions import Record, Session
from . import threads
from .checkpoints.background_writer import BackgroundWriter
from .checkpoints.host_snapshot import HostSnapshot
from .configure_optimizers import ScheduleEntry
from .hooks import Hooks, Parameters, Result, own_hook
from .keyed.dropout import SampleKeys
from .loggers.calls import call_logger
from .loggers.contract import LoggerContract
from .metric_log import MetricLog
from .network.loss_watch import LossWatch
from .session_time import session_time
from .step_timer import StepTimes
from .stragglers import Stragglers
from .strategy_contract import StrategyContract
from .sync_batchnorm import Padding


@dataclass
class RunState:
    """Objects, position and metrics of a training."""

    config: Config
    run_dir: Path
    fabric: Fabric
    contract: StrategyContract
    task: LightningModule
    data: Any
    """A DataContract: ImageData, or LoaderData around a user-provided LightningDataModule or a task's loaders."""
    stop_request: StopRequest
    module: Any = None
    """The task's Step in the strategy's wrapper."""
    optimizer: Any = None
    schedules: list[ScheduleEntry] = field(default_factory=list)
    callbacks: dict[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    sample_keys: SampleKeys = field(default_factory=SampleKeys)
    padding: Padding = field(default_factory=Padding)
    log: MetricLog = field(default_factory=lambda: MetricLog("train", steps_by_default=True))
    times: StepTimes = field(default_factory=StepTimes)
    stragglers: Stragglers = field(default_factory=Stragglers)
    session: Session = field(default_factory=lambda: Session.begun(0, 0, 1))
    """The current session."""
    earlier_sessions: list[Record] = field(default_factory=list)
    """Earlier sessions, as rank 0 has them."""

    epoch: int = 0
    step: int = 0
    """Optimizer steps done."""
    step_in_epoch: int = 0
    offset: int = 0
    """Steps by which the epochs of an earlier content of the data were longer, or shorter, than those of this one."""
    content: str | None = None
    """Digest of what was found in the data; None where nothing was recorded of it."""
    has_other_content: bool = False
    """Whether the data has changed since the session before, which the user has accepted."""
    in_epoch: bool = False
    """Whether an epoch has begun and its end is not complete."""
    batch_idx: int = -1
    """Index of this worker's current or last batch in the epoch."""
    samples: int = 0
    """Trained samples, over all workers."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest value of every logged name."""
    logged: set[str] = field(default_factory=set)
    """Names that the task has logged in this session, in training or evaluation."""
    unlogged: set[str] = field(default_factory=set)
    """Names that the task logs with logger=False: kept, not passed to loggers."""
    shown: set[str] = field(default_factory=set)
    """Names that the task logs with prog_bar=True."""
    alone_in_process: bool = False
    """Whether this process trains nothing else."""
    evaluates_only: bool = False
    """Whether nothing is trained, and nothing written into the run's folder or next to it."""
    leaves_at: int | None = None
    """The step after which a model of a pipeline moves to another worker, in this epoch or at its end."""
    stop_reason: str | None = None
    """Reason for ending the training early; the same on all workers."""
    time_limit: TimeLimit = field(default_factory=TimeLimit)
    tolerates_divergence: bool = False
    """Whether a loss that is NaN or infinite ends nothing: of a callback that looks for where it diverges."""
    save_wanted: bool = False
    """Set by a callback; the loop saves after all callbacks of this step."""
    copies_wanted: list[Path] = field(default_factory=list)
    """Files of pending calls of trainer.save_checkpoint."""
    write_copies: Callable[[], None] = lambda: None
    """Writes these files; every worker must call it, between two steps."""
    set_frozen: Callable[[int], None] = lambda epoch: None
    """Freezes the parameters that are not trained in an epoch, and unfreezes those that are again."""
    batchnorm_statistics: Callable[[], dict[str, torch.Tensor]] = dict
    """Statistics of BatchNorm over the training data for the task's present weights, by their buffers' names; every
    worker must call it, between two steps."""
    loss_watch: LossWatch = field(default_factory=LossWatch)
    skips_batches: bool = False
    """Whether the task has skipped a batch by returning None."""
    drawing: list[str] | None = None
    """Modules that draw from the process's generators, found by `part_draws`; None: not searched yet."""
    resumed_from: Path | None = None
    last_checkpoint: Path | None = None
    """The newest complete one of this session, or the one that it began with."""
    unfinished_checkpoint: Path | None = None
    """One that is being written while the training goes on."""
    checkpoint_writer: BackgroundWriter = field(default_factory=BackgroundWriter)
    host_snapshot: HostSnapshot = field(default_factory=HostSnapshot)
    validated_at: int = -1
    """Step of the newest validation."""

    @property
    def raw_optimizer(self) -> Optimizer:
        return self.optimizer.optimizer

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch, limits applied."""
        return limit_batches(self.config.trainer.train_limit, self.data.steps_per_epoch, self.config)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        trainer = self.config.trainer
        steps = trainer.max_epochs * self.steps_per_epoch + self.offset
        if trainer.fast_dev_run:
            return 1
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)

    def session_record(self) -> Record:
        """Record of this session so far; the seconds are this worker's."""
        # a worker of a pipeline trains other models in between
        spent = session_time(heartbeat, self.times.communication) if self.alone_in_process else {}
        return self.session.record(self.step, self.samples, self.times.total, threads=threads.current().count, **spent)

    def communication(self, before: StepTimes, alone: bool = False) -> dict[str, float]:
        """Bytes and waiting time a step since `before`, mean over workers. Collective, unless `alone`: own values."""
        sums = self.communication_sums(before, alone)
        steps = sums.pop("steps", 0.0)
        return {name: value / steps for name, value in sums.items()} if steps else {}

    def communication_sums(self, before: StepTimes, alone: bool = False) -> dict[str, float]:
        """The same summed over all steps of all workers, with their number as `steps`, as asynchronous workers make
        unequal numbers of steps. Empty with one worker and no server."""
        if self.contract.ledger is None or (self.fabric.world_size == 1 and self.contract.ticket_source is None):
            return {}
        mine = self.times.communication_since(before)
        if alone:
            return mine
        values = numbers_on_device(list(mine.values()), self.fabric.device)
        total = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        return dict(zip(mine, total.tolist(), strict=True))

    def throughput(self) -> float:
        """Samples a second over all workers. Collective: each asynchronous worker counts its own."""
        rate = self.times.samples / self.times.total if self.times.total else 0.0
        if self.contract.ticket_source is None or self.fabric.world_size == 1:
            return rate
        total = self.fabric.all_reduce(
            torch.tensor(rate, dtype=torch.float64, device=self.fabric.device), reduce_op="sum"
        )
        assert isinstance(total, torch.Tensor)
        return float(total)

    def call(self, hook: Callable[[Any, "RunState"], object]) -> None:
        """Call a hook of every callback that has it, in the config's order.

        Args:
            hook: of CallbackContract.
        """
        for method in self.callback_hooks(hook):
            method(self)

    def callback_hooks(
        self, hook: Callable[Concatenate[Any, Parameters], Result]
    ) -> list[Callable[Parameters, Result]]:
        """This hook of every callback that has it, in the config's order."""
        methods = (own_hook(callback, hook) for callback in self.callbacks.values())
        return [method for method in methods if method is not None]

    def learning_rate(self) -> float:
        return float(self.raw_optimizer.param_groups[0]["lr"])

    def own_name(self, name: str) -> str:
        """The name of a value of Leyden's: one that the task logs is the task's alone."""
        return f"leyden/{name}" if name in self.logged else name

    def report(self, values: dict[str, float]) -> None:
        """Keep values and pass them to every logger."""
        self.metrics.update(values)
        if self.unlogged:
            values = {name: value for name, value in values.items() if name not in self.unlogged}
        if values and self.fabric.is_global_zero:
            for logger in self.fabric.loggers:
                call_logger(logger, logger.log_metrics, values, step=self.step)

    def report_histograms(self, histograms: dict[str, dict[int, int]]) -> None:
        """Pass counts by value to the loggers that inherit LoggerContract."""
        for logger in self.fabric.loggers:
            if isinstance(logger, LoggerContract):
                for name, counts in histograms.items():
                    call_logger(logger, logger.log_histogram, name, counts, self.step)

    def report_image(self, name: str, image: Image) -> None:
        """Pass an image to the loggers that inherit LoggerContract."""
        for logger in self.fabric.loggers:
            if isinstance(logger, LoggerContract):
                call_logger(logger, logger.log_image, name, image, self.step)


def limit_batches(limit: int | float, available: int, config: Config) -> int:
    """Number of batches by a limit_*_batches key: an int is a count, a float a fraction."""
    if config.trainer.fast_dev_run:
        return min(1, available)
    return min(limit, available) if isinstance(limit, int) else int(available * limit)
