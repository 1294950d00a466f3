"""LightningModules that ask their trainer for things. None knows Leyden."""

from pathlib import Path
from typing import Any

import torch
from lightning_examples import SEEN, Plain
from torch import Tensor

NAMES = [
    "accumulate_grad_batches", "check_val_every_n_epoch", "current_epoch", "device_ids", "enable_validation",
    "estimated_stepping_batches", "evaluating", "fast_dev_run", "global_rank", "global_step", "gradient_clip_val",
    "interrupted", "is_global_zero", "is_last_batch", "limit_test_batches", "limit_train_batches", "limit_val_batches",
    "local_rank", "log_every_n_steps", "max_epochs", "max_steps", "min_steps", "node_rank", "num_devices", "num_nodes",
    "num_training_batches", "num_val_batches", "precision", "predicting", "received_sigterm", "sanity_checking",
    "should_stop", "testing", "training", "validating", "world_size", "ckpt_path", "early_stopping_callback",
    "barebones",
]  # fmt: skip
"""Attributes whose values must be those of Lightning's Trainer at every hook."""


def asked(module: Any) -> dict[str, Any]:
    """Every attribute in NAMES, and what others hold, as plain values."""
    trainer = module.trainer
    loader, val = trainer.train_dataloader, trainer.val_dataloaders
    return {
        **{name: getattr(trainer, name) for name in NAMES},
        "model": trainer.model is module and trainer.lightning_module is module,
        "optimizers": [type(o).__name__ for o in trainer.optimizers],
        "rates": [group["lr"] for o in trainer.optimizers for group in o.param_groups],
        "schedules": [(c.interval, c.frequency, c.name, c.reduce_on_plateau) for c in trainer.lr_scheduler_configs],
        "state": (trainer.state.fn, trainer.state.stage, trainer.state.status),
        "train": loader and (len(loader), len(loader.dataset), loader.batch_size, type(loader).__name__),
        "val": val and (len(val), len(val.dataset), type(val).__name__),
        "datamodule": type(trainer.datamodule).__name__,
        "strategy": str(trainer.strategy.root_device),
        "logged": {n: round(float(v), 5) for n, v in trainer.callback_metrics.items() if "_loss" in n},
    }


class Asks(Plain):
    """Notes what its trainer says, by the hook."""

    def note(self, hook: str) -> None:
        values = asked(self)
        if hook == "on_fit_start":  # Lightning has loaded nothing yet
            values = {name: value for name, value in values.items() if name not in ("train", "val", "num_val_batches")}
        SEEN.append((hook, values))

    def on_fit_start(self) -> None:
        self.note("on_fit_start")

    def on_train_start(self) -> None:
        self.note("on_train_start")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("training_step")
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note("on_train_batch_end")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note("validation_step")
        super().validation_step(batch, batch_idx)

    def on_validation_end(self) -> None:
        self.note("on_validation_end")

    def on_train_epoch_end(self) -> None:
        self.note("on_train_epoch_end")


class HydraTemplate(Plain):
    """The optimizer over what the trainer calls its model (lightning-hydra-template, src/models/mnist_module.py)."""

    def configure_optimizers(self) -> Any:
        assert self.trainer.model is not None
        return torch.optim.SGD(self.trainer.model.parameters(), lr=0.1, momentum=0.9)


class TakesPartials(Plain):
    """The optimizer as an argument, to be called with the parameters (the same template, configs/model/mnist.yaml)."""

    def __init__(self, optimizer: Any):
        super().__init__()
        self.save_hyperparameters(logger=False)

    def configure_optimizers(self) -> Any:
        return self.hparams["optimizer"](params=self.parameters())


class AsksTooMuch(Plain):
    """Reads the loop of Lightning's Trainer in its own source."""

    def on_train_epoch_end(self) -> None:
        self.print(self.trainer.fit_loop.epoch_loop.batch_idx)


class AsksBaseTooMuch(AsksTooMuch):
    """The same in a base class."""


class AsksCarefully(Plain):
    """Looks before it reads, and reads what it has set itself: nothing to refuse."""

    def on_fit_start(self) -> None:
        if hasattr(self.trainer, "fit_loop"):
            SEEN.append(self.trainer.fit_loop)
        try:
            SEEN.append(self.trainer.tuner)  # pyright: ignore
        except AttributeError:
            SEEN.append("no tuner")
        trainer: Any = self.trainer
        trainer.mine = 3
        SEEN.append(getattr(self.trainer, "profiler_of_mine", "none"))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.trainer.predict_loop


class AsksInASideDoor(Plain):
    """Out of sight of a reader of its source."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        trainer: Any = self.trainer
        return trainer.fit_loop.epoch_loop


class Saves(Plain):
    """Saves checkpoints where people do."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step == 8:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "at8.ckpt")

    def on_train_epoch_end(self) -> None:
        self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / f"epoch{self.current_epoch}.ckpt")
        callback: Any = self.trainer.checkpoint_callback
        SEEN.append((callback.best_model_path, callback.last_model_path, callback.best_model_score))

    def on_train_end(self) -> None:
        path = Path(self.trainer.default_root_dir) / "end.ckpt"
        self.trainer.save_checkpoint(path)
        SEEN.append(path.is_file())


class Keeps:
    """Its arguments as it got them. Has a hook and can be called: of the kind of a callback and of an augmentation."""

    def __init__(self, norm: Any, layers: Any = None):
        self.norm, self.layers = norm, layers

    def __call__(self, image: Any, key: Any) -> Any:
        return image

    def on_step_end(self, state: Any) -> None:
        pass
