"""What a LightningModule, a LightningDataModule or a Lightning callback reads of `self.trainer`.

Names, types and values are those of Lightning's Trainer 2.6 in a fit on the same data; tests compare them. The loops
of Lightning's Trainer (`fit_loop`, ...), its verbs (`fit`, `test`, ...) and its connectors are not there.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .log import log as run_log

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from torch.optim import Optimizer

    from .lightning_module import ScheduleEntry
    from .state import RunState


class LoaderView:
    """One of Leyden's own datasets in place of a DataLoader: what is read of a loader besides its batches.

    Args:
        dataset: the samples.
        batch_size: samples of a global batch.
        batches: of an epoch.
    """

    def __init__(self, dataset: Any, batch_size: int, batches: int):
        self.dataset = dataset
        self.batch_size = batch_size
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a dataset of Leyden's is read by the loop alone; index trainer.train_dataloader.dataset")


class TrainerView:
    """The trainer that a task sees. What it does not have raises AttributeError, naming the line that asked."""

    barebones = False
    progress_bar_callback = None

    def __init__(self, state: "RunState"):
        from lightning.pytorch.trainer.states import TrainerFn, TrainerState, TrainerStatus

        self._state = state
        self.state = TrainerState(status=TrainerStatus.RUNNING, fn=TrainerFn.FITTING)
        self.datamodule = getattr(state.data, "module", state.data)

    def __getattr__(self, name: str) -> Any:
        if name in offered():  # its property has raised AttributeError
            if self._state.data is None:
                raise AttributeError(f"trainer.{name} is not known yet: the data is being set up")
            return inspect.getattr_static(self, name).__get__(self)  # raises what the property raised
        frame = sys._getframe(1)
        asks = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else frame.f_code.co_name
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise AttributeError(f"{asks} reads trainer.{name} ({place}), which Leyden's trainer does not offer")

    # Stage. As in Lightning, setting one to True ends the others, and False ends only itself.

    def _stage(self, stage: str, begins: bool) -> None:
        from lightning.pytorch.trainer.states import RunningStage, TrainerFn

        wanted = RunningStage[stage]
        if begins:
            self.state.stage = wanted
        elif self.state.stage == wanted:
            self.state.stage = None
        self.state.fn = TrainerFn.TESTING if self.testing else TrainerFn.FITTING

    def _is(self, stage: str) -> bool:
        return self.state.stage is not None and self.state.stage.name == stage

    @property
    def training(self) -> bool:
        return self._is("TRAINING")

    @training.setter
    def training(self, begins: bool) -> None:
        self._stage("TRAINING", begins)

    @property
    def validating(self) -> bool:
        return self._is("VALIDATING")

    @validating.setter
    def validating(self, begins: bool) -> None:
        self._stage("VALIDATING", begins)

    @property
    def testing(self) -> bool:
        return self._is("TESTING")

    @testing.setter
    def testing(self, begins: bool) -> None:
        self._stage("TESTING", begins)

    @property
    def sanity_checking(self) -> bool:
        return self._is("SANITY_CHECKING")

    @sanity_checking.setter
    def sanity_checking(self, begins: bool) -> None:
        self._stage("SANITY_CHECKING", begins)

    @property
    def predicting(self) -> bool:
        return False

    @property
    def evaluating(self) -> bool:
        return self.validating or self.testing or self.sanity_checking

    @property
    def interrupted(self) -> bool:
        return False

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
        """Whether the batch in training is the epoch's last of this worker."""
        return self._state.batch_idx + 1 >= self.num_training_batches

    # Model and optimization

    @property
    def model(self) -> nn.Module:
        """The task. Lightning has a strategy's wrapper around it here where there is one."""
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
    def accumulate_grad_batches(self) -> int:
        return self._state.config.trainer.accumulate_grad_batches

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

    # Data

    @property
    def train_dataloader(self) -> Any:
        """The DataLoader of the data module or of the task; of Leyden's own datasets a LoaderView."""
        return self._loader("train")

    @property
    def val_dataloaders(self) -> Any:
        return self._loader("val")

    @property
    def test_dataloaders(self) -> Any:
        return self._loader("test")

    def _loader(self, split: str) -> Any:
        data = self._state.data
        return None if data is None else data.loader_of(split)

    @property
    def num_training_batches(self) -> int:
        """Batches of an epoch that this worker trains on, of `accumulate_grad_batches` a step."""
        state = self._state
        batches = state.steps_per_epoch * self.accumulate_grad_batches
        there_are = state.data.batches_of("train")
        return batches if there_are is None else min(batches, there_are)

    @property
    def num_val_batches(self) -> "list[int | float]":
        return self._evaluated("val", self.limit_val_batches)

    @property
    def num_test_batches(self) -> "list[int | float]":
        return self._evaluated("test", self.limit_test_batches)

    def _evaluated(self, split: str, limit: int | float) -> "list[int | float]":
        """Batches that are evaluated, of one loader; empty where there is none."""
        from .state import limited

        state = self._state
        if not state.data.has(split):
            return []
        batches = state.data.batches_of(split)
        if batches is None:  # a stream
            return [limit if isinstance(limit, int) else float("inf")]
        return [limited(limit, batches, state.config)]

    @property
    def limit_train_batches(self) -> int | float:
        """Of optimizer steps, as in Leyden's config; without accumulation that is of batches, as in Lightning."""
        return self._state.config.trainer.train_limit

    @property
    def limit_val_batches(self) -> int | float:
        return self._state.config.trainer.val_limit

    @property
    def limit_test_batches(self) -> int | float:
        return self._state.config.trainer.limit_test_batches

    @property
    def enable_validation(self) -> bool:
        from .lightning_packages import overrides

        there_is = self._state.data.has("val") and overrides(self._state.task, "validation_step")
        return there_is and self.limit_val_batches > 0

    @property
    def check_val_every_n_epoch(self) -> int | None:
        return self._state.config.trainer.check_val_every_n_epoch

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
        """Indices of the node's devices; on the CPU its workers are counted."""
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
        """Newest values; what is logged by step and by epoch also under its plain name.

        Those of the epoch or step in progress are this worker's own, as in Lightning without sync_dist.
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
        """Those of the config, Leyden's and Lightning's."""
        return list(self._state.callbacks.values())

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        from .callbacks.checkpoint import Checkpoint

        return [callback for callback in self.callbacks if isinstance(callback, Checkpoint)]

    @property
    def checkpoint_callback(self) -> Any:
        """`callbacks.checkpoint`, with best_model_path, best_model_score, last_model_path and dirpath; or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        from .callbacks.early_stopping import EarlyStopping

        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> Any:
        """`callbacks.early_stopping`, with wait_count, best_score, patience and monitor; or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that the run was resumed from."""
        path = self._state.resumed_from
        return None if path is None else str(path)

    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a checkpoint of Leyden's format to `filepath`. Every worker must call it.

        Inside an epoch it is written when the step in progress, or the epoch's end, is complete: only then can a
        training go on from it.

        Raises:
            ValueError: storage_options, or a strategy whose workers are asynchronous.
        """
        if storage_options is not None:
            raise ValueError("trainer.save_checkpoint: storage_options is not offered, the file is a local one")
        if self._state.contract.turns is not None:
            raise ValueError(
                "trainer.save_checkpoint is not offered where workers are asynchronous: callbacks.checkpoint"
            )
        if weights_only:
            run_log.info("trainer.save_checkpoint: a checkpoint is written whole; init_from takes its weights alone")
        self._state.copies_wanted.append(Path(filepath))
        if not self._state.in_epoch:
            from .checkpoint import write_copies

            write_copies(self._state)

    @property
    def fast_dev_run(self) -> bool:
        return self._state.config.trainer.fast_dev_run

    @property
    def should_stop(self) -> bool:
        return self._state.stop_reason is not None

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self._state.stop_reason = f"{type(self._state.task).__name__} asked to stop" if stop else None


_OF_THE_OBJECT = ("state", "datamodule")


def offered() -> list[str]:
    """Names that `self.trainer` has."""
    return sorted([*(name for name in vars(TrainerView) if not name.startswith("_")), *_OF_THE_OBJECT])
