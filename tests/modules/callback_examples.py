"""Callbacks as people write them for Lightning's Trainer. None knows Leyden."""

from typing import Any

import pytorch_lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning_examples import SEEN, Classic, Hooked, Plain
from torch import Tensor
from torch.optim import Optimizer

HOOKS = [
    name
    for name in vars(Callback)
    if (name.startswith("on_") or name in ("setup", "teardown")) and "checkpoint" not in name
]


def summarized(value: Any) -> Any:
    """What two trainers' arguments are compared by."""
    if isinstance(value, Tensor):
        return round(float(value.detach().double().sum()), 4)
    if isinstance(value, (list, tuple)):
        return [summarized(item) for item in value]
    if isinstance(value, dict):
        return {key: summarized(item) for key, item in value.items()}
    if isinstance(value, (Optimizer, BaseException)):
        return type(value).__name__
    return str(getattr(value, "value", value))


class Recorder(Callback):
    """Notes every hook, its arguments, and where the trainer stands."""


def _noting(hook: str) -> Any:
    def method(self: Any, trainer: Any, pl_module: Any, *arguments: Any, **named: Any) -> None:
        assert pl_module.trainer is trainer
        stage = (trainer.sanity_checking, trainer.validating, pl_module.training) if "_validation_" in hook else ()
        # An epoch that is cut short counts for Lightning's Trainer, and not for Leyden, which may go on in it.
        epoch = () if hook in ("on_train_end", "on_fit_end", "teardown") else (trainer.current_epoch,)
        at = (*epoch, trainer.global_step, *stage)
        SEEN.append((hook, type(pl_module).__name__, at, summarized([*arguments, *named.values()])))

    return method


for _hook in HOOKS:
    setattr(Recorder, _hook, _noting(_hook))


class OfTheOtherPackage(pytorch_lightning.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        SEEN.append(("loss", round(float(outputs["loss"]), 5)))
        self.log("from_callback", 2.0 * float(outputs["loss"]), on_step=False, on_epoch=True)  # pyright: ignore


class Counts(Callback):
    """Keeps something in checkpoints, by both ways that there are."""

    def __init__(self, of: str = "steps"):
        self.of = of
        self.count = self.loaded = 0

    @property
    def state_key(self) -> str:
        return self._generate_state_key(of=self.of)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:  # pyright: ignore
        self.count += 1
        SEEN.append((self.of, self.count, self.loaded))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint[f"mine {self.of}"] = trainer.global_step

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.loaded = checkpoint[f"mine {self.of}"]


class Stops(Recorder):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:  # pyright: ignore
        SEEN.append(("on_train_batch_end", trainer.global_step))
        if trainer.global_step == 3:
            trainer.should_stop = True


class StopsOnOne(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:  # pyright: ignore
        if trainer.global_rank == 1:
            trainer.should_stop = True


class ReadsMetrics(Callback):
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        SEEN.append(("val_loss", round(float(trainer.callback_metrics["val_loss"]), 5)))


class ReadsTheFitLoop(Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if hasattr(trainer, "tuner"):
            trainer.tuner.scale()
        trainer.fit_loop.max_epochs = 3


class MyCheckpoint(ModelCheckpoint):
    """A user's own."""


class Kept(Logger):
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: Any, *arguments: Any, **named: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


class BringsCallbacks(Classic):
    def configure_callbacks(self) -> Any:
        return [Counts("of the task"), LearningRateMonitor()]


class BringsOne(Hooked):
    def configure_callbacks(self) -> Any:
        return Stops()


class BringsEarlyStopping(Plain):
    def configure_callbacks(self) -> Any:
        return [EarlyStopping(monitor="val_loss")]


class BringsTwice(Plain):
    def configure_callbacks(self) -> Any:
        return [Counts(), Counts()]


class BringsAnotherThing(Plain):
    def configure_callbacks(self) -> Any:
        return [torch.nn.Linear(1, 1)]


class Raises(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2:
            raise RuntimeError("in the third step")
        return super().training_step(batch, batch_idx)
