"""RunState: everything that a running training is made of. Callbacks get it; checkpoints are made from it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from PIL.Image import Image
from torch.optim import Optimizer

from . import threads
from .config import Config
from .dropout import SampleKeys
from .lightning_module import Hooks, ScheduleEntry
from .metric_log import MetricLog
from .sessions import Record, Session
from .signals import StopRequest
from .strategies.contract import Contract
from .sync_batchnorm import Padding
from .time_limit import TimeLimit
from .timing import StepTimes


@dataclass
class RunState:
    """The objects of a training and where it stands."""

    config: Config
    run_dir: Path
    fabric: Fabric
    contract: Contract
    task: LightningModule
    data: Any
    """ImageData, or LoaderData around somebody's LightningDataModule."""
    stop_request: StopRequest
    module: Any = None
    """The task's Step, as the strategy wrapped it."""
    optimizer: Any = None
    schedules: list[ScheduleEntry] = field(default_factory=list)
    callbacks: dict[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    sample_keys: SampleKeys = field(default_factory=SampleKeys)
    padding: Padding = field(default_factory=Padding)
    log: MetricLog = field(default_factory=lambda: MetricLog("train", steps_by_default=True))
    times: StepTimes = field(default_factory=StepTimes)
    session: Session = field(default_factory=lambda: Session.begun(0, 0, 1))
    """This start of the training."""
    earlier_sessions: list[Record] = field(default_factory=list)
    """Those before it, as the first worker knows them."""

    epoch: int = 0
    step: int = 0
    """Optimizer steps done."""
    step_in_epoch: int = 0
    in_epoch: bool = False
    """Whether an epoch has begun whose end is not complete."""
    batch_idx: int = -1
    """Of the batch that this worker trains on, or has trained on last, in this epoch."""
    samples: int = 0
    """Samples trained on, over all workers."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest value of everything logged."""
    unlogged: set[str] = field(default_factory=set)
    """Names that the task logs with logger=False: remembered, not handed to loggers."""
    shown: set[str] = field(default_factory=set)
    """Names that the task logs with prog_bar=True."""
    leaves_at: int | None = None
    """The step after which a model of a pipeline goes on at another worker, in this epoch or at its end."""
    stop_reason: str | None = None
    """Why the training ends early; the same on all workers."""
    time_limit: TimeLimit = field(default_factory=TimeLimit)
    save_wanted: bool = False
    """Set by a callback; the loop saves when every callback has had its turn at this step."""
    copies_wanted: list[Path] = field(default_factory=list)
    """Files that the task has asked its trainer to save a checkpoint in."""
    skips_batches: bool = False
    """Whether the task has skipped a batch by returning None."""
    drawing: list[str] | None = None
    """Modules that draw from the process's generators, as `part_draws` found them; None: not looked for yet."""
    resumed_from: Path | None = None
    last_checkpoint: Path | None = None
    validated_at: int = -1
    """Step of the newest validation."""

    @property
    def raw_optimizer(self) -> Optimizer:
        return self.optimizer.optimizer

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch, limits applied."""
        return limited(self.config.trainer.train_limit, self.data.steps_per_epoch, self.config)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        trainer = self.config.trainer
        steps = trainer.max_epochs * self.steps_per_epoch
        if trainer.fast_dev_run:
            return 1
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)

    def session_record(self) -> Record:
        """What this session has done so far; the seconds are this worker's."""
        return self.session.record(self.step, self.samples, self.times.total, threads=threads.used().count)

    def communication(self, before: StepTimes, alone: bool = False) -> dict[str, float]:
        """What a worker sent and waited a step since `before`, the mean over all. Every worker must call it, but for
        its own figures `alone`."""
        sums = self.communication_sums(before, alone)
        steps = sums.pop("steps", 0.0)
        return {name: value / steps for name, value in sums.items()} if steps else {}

    def communication_sums(self, before: StepTimes, alone: bool = False) -> dict[str, float]:
        """The same over all steps of all workers, and how many those were, as `steps`: by their own clocks workers
        make unequal numbers of steps. Empty where there is nobody to send to."""
        if self.contract.ledger is None or (self.fabric.world_size == 1 and self.contract.turns is None):
            return {}
        mine = self.times.communication_since(before)
        if alone:
            return mine
        values = torch.tensor(list(mine.values()), dtype=torch.float64, device=self.fabric.device)
        total = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        return dict(zip(mine, total.tolist(), strict=True))

    def throughput(self) -> float:
        """Samples a second over all workers, who all must ask: by their own clocks each has counted its own."""
        rate = self.times.samples / self.times.total if self.times.total else 0.0
        if self.contract.turns is None or self.fabric.world_size == 1:
            return rate
        total = self.fabric.all_reduce(
            torch.tensor(rate, dtype=torch.float64, device=self.fabric.device), reduce_op="sum"
        )
        assert isinstance(total, torch.Tensor)
        return float(total)

    def call(self, hook: str) -> None:
        """Call a hook of every callback that has it, in the config's order."""
        for callback in self.callbacks.values():
            method = getattr(callback, hook, None)
            if method is not None:
                method(self)

    def learning_rate(self) -> float:
        return float(self.raw_optimizer.param_groups[0]["lr"])

    def report(self, values: dict[str, float]) -> None:
        """Remember values and hand them to every logger."""
        self.metrics.update(values)
        if self.unlogged:
            values = {name: value for name, value in values.items() if name not in self.unlogged}
        if values and self.fabric.is_global_zero:
            for logger in self.fabric.loggers:
                logger.log_metrics(values, step=self.step)

    def report_histograms(self, histograms: dict[str, dict[int, int]]) -> None:
        """Hand counts by value to those loggers that can show them."""
        for logger in self.fabric.loggers:
            if hasattr(logger, "log_histogram"):
                for name, counts in histograms.items():
                    logger.log_histogram(name, counts, self.step)  # pyright: ignore[reportAttributeAccessIssue]

    def report_image(self, name: str, image: Image) -> None:
        """Hand a picture to those loggers that can show it."""
        for logger in self.fabric.loggers:
            if hasattr(logger, "log_image"):
                logger.log_image(name, image, self.step)  # pyright: ignore[reportAttributeAccessIssue]


def limited(limit: int | float, available: int, config: Config) -> int:
    """A limit_*_batches key applied: a whole number counts, a fraction scales."""
    if config.trainer.fast_dev_run:
        return min(1, available)
    return min(limit, available) if isinstance(limit, int) else int(available * limit)
