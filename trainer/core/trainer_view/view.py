"""`self.trainer` as LightningModules, LightningDataModules and Lightning callbacks read it.

Names, types and values are those of Lightning's Trainer 2.6 in a fit on the same data; tests compare them. The loops
of Lightning's Trainer (`fit_loop`, ...), its verbs (`fit`, `test`, ...) and its connectors are not offered.
"""

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...base.log import log as run_log
from ...config.lightning.trainer_attributes import TRAINER_ATTRIBUTES
from ..protocols import CheckpointCallback, EarlyStoppingCallback
from .data import TrainerDataAttributes
from .stage import TrainerStageAttributes

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from torch.optim import Optimizer

    from ..configure_optimizers import ScheduleEntry
    from ..state import RunState


class TrainerView(TrainerStageAttributes, TrainerDataAttributes):
    """`self.trainer` of a task, a data module or a Lightning callback.

    An attribute that it does not have raises AttributeError and names the line that reads it.
    """

    barebones = False
    progress_bar_callback = None

    def __init__(self, state: "RunState"):
        from lightning.pytorch.trainer.states import TrainerFn, TrainerState, TrainerStatus

        self._state = state
        self.state = TrainerState(status=TrainerStatus.RUNNING, fn=TrainerFn.FITTING)
        self.datamodule = None if state.data is None else state.data.datamodule

    def __getattr__(self, name: str) -> Any:
        if name in TRAINER_ATTRIBUTES:  # its property raised AttributeError
            if self._state.data is None:
                raise AttributeError(f"trainer.{name} is not known yet: the data is being set up")
            return inspect.getattr_static(self, name).__get__(self)  # raises what the property raised
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # inspect.stack reads source files
        reader = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else frame.f_code.co_name
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise AttributeError(f"{reader} reads trainer.{name} ({place}), which Leyden's trainer does not offer")

    @property
    def received_sigterm(self) -> bool:
        return self._state.stop_request.signal is not None

    # Position

    @property
    def current_epoch(self) -> int:
        return self._state.epoch

    @property
    def global_step(self) -> int:
        return self._state.step

    @property
    def max_epochs(self) -> int:
        return self._state.config.trainer.max_epochs

    @property
    def max_steps(self) -> int:
        return self._state.config.trainer.max_steps

    @property
    def min_epochs(self) -> None:
        return None

    @property
    def min_steps(self) -> None:
        return None

    @property
    def estimated_stepping_batches(self) -> int:
        return self._state.total_steps

    @property
    def is_last_batch(self) -> bool:
        """Whether the current batch is this worker's last of the epoch."""
        return self._state.batch_idx + 1 >= self.num_training_batches

    # Model and optimization

    @property
    def model(self) -> nn.Module:
        """The task. Lightning returns the strategy's wrapper, if there is one."""
        return self._state.task

    @property
    def lightning_module(self) -> "LightningModule":
        return self._state.task

    @property
    def optimizers(self) -> "list[Optimizer]":
        return [] if self._state.optimizer is None else [self._state.raw_optimizer]

    @property
    def lr_scheduler_configs(self) -> "list[ScheduleEntry]":
        return self._state.schedules

    @property
    def gradient_clip_val(self) -> float | None:
        return self._state.config.trainer.gradient_clip_val

    @property
    def gradient_clip_algorithm(self) -> str:
        return self._state.config.trainer.gradient_clip_algorithm

    @property
    def precision(self) -> str:
        return self._state.config.trainer.precision

    @property
    def scaler(self) -> Any:
        return getattr(self._state.fabric.strategy.precision, "scaler", None)

    # Workers and devices

    @property
    def world_size(self) -> int:
        return self._state.fabric.world_size

    @property
    def num_devices(self) -> int:
        return self._state.config.topology.devices_per_node

    @property
    def num_nodes(self) -> int:
        return self._state.config.topology.nodes

    @property
    def global_rank(self) -> int:
        return self._state.fabric.global_rank

    @property
    def local_rank(self) -> int:
        return self._state.fabric.local_rank

    @property
    def node_rank(self) -> int:
        return self._state.fabric.node_rank

    @property
    def is_global_zero(self) -> bool:
        return self._state.fabric.is_global_zero

    @property
    def device_ids(self) -> list[int]:
        """Indices of the node's devices; on the CPU, of its workers."""
        strategy: Any = self._state.fabric.strategy
        devices = getattr(strategy, "parallel_devices", None) or [strategy.root_device]
        return [device.index or number for number, device in enumerate(devices)]

    @property
    def strategy(self) -> Any:
        return self._state.fabric.strategy

    @property
    def accelerator(self) -> Any:
        return self._state.fabric.strategy.accelerator

    def print(self, *values: Any, **options: Any) -> None:
        if self.local_rank == 0:
            print(*values, **options)

    # Metrics and loggers

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """Newest values; a value logged by step and by epoch also under its plain name.

        Values of the current epoch or step are this worker's own, as in Lightning without sync_dist.
        """
        values = {name: torch.tensor(value) for name, value in self._state.metrics.items()}
        for name in [n for n in values if n.endswith("_epoch")]:
            values.setdefault(name.removesuffix("_epoch"), values[name])
        return {**values, **self._state.log.own_values(with_metrics=self.world_size == 1)}

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value) for name, value in self._state.metrics.items()}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        return {name: value for name, value in self._state.metrics.items() if name in self._state.shown}

    @property
    def logger(self) -> Any:
        return self._state.fabric.loggers[0] if self._state.fabric.loggers else None

    @property
    def loggers(self) -> list[Any]:
        return self._state.fabric.loggers

    @property
    def default_root_dir(self) -> str:
        return str(self._state.run_dir)

    @property
    def log_dir(self) -> str:
        return str(self._state.run_dir)

    @property
    def log_every_n_steps(self) -> int:
        return self._state.config.trainer.log_every_n_steps

    # Callbacks and checkpoints

    @property
    def callbacks(self) -> list[Any]:
        """Callbacks of the config, Leyden's and Lightning's."""
        return list(self._state.callbacks.values())

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return [callback for callback in self.callbacks if isinstance(callback, CheckpointCallback)]

    @property
    def checkpoint_callback(self) -> Any:
        """`callbacks.checkpoint`, with best_model_path, best_model_score, last_model_path and dirpath; or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStoppingCallback)]

    @property
    def early_stopping_callback(self) -> Any:
        """`callbacks.early_stopping`, with wait_count, best_score, patience and monitor; or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint from which the run was resumed."""
        path = self._state.resumed_from
        return None if path is None else str(path)

    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a checkpoint in Leyden's format to `filepath`. Every worker must call it.

        Inside an epoch it is written when the current step, or the end of the epoch, is complete: training can only
        continue from there.

        Raises:
            ValueError: storage_options, or a strategy whose workers are asynchronous.
        """
        if storage_options is not None:
            raise ValueError("trainer.save_checkpoint: storage_options is not offered, the file is a local one")
        if self._state.contract.ticket_source is not None:
            raise ValueError(
                "trainer.save_checkpoint is not offered where workers are asynchronous: callbacks.checkpoint"
            )
        if weights_only:
            run_log.info("trainer.save_checkpoint: a full checkpoint is written; init_from reads only its weights")
        self._state.copies_wanted.append(Path(filepath))
        if not self._state.in_epoch:
            self._state.write_copies()

    @property
    def fast_dev_run(self) -> bool:
        return self._state.config.trainer.fast_dev_run

    @property
    def should_stop(self) -> bool:
        return self._state.stop_reason is not None

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self._state.stop_reason = f"{type(self._state.task).__name__} asked to stop" if stop else None


def view_of(state: "RunState") -> TrainerView:
    """The task's `self.trainer`."""
    seen = state.task.trainer
    assert isinstance(seen, TrainerView)
    return seen
