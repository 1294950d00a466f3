"""Callbacks of Lightning's that Leyden's loop cannot call, recognized by class."""

from typing import NamedTuple

from .base_classes import lightning_base, of_lightning
from .trainer_attributes import TRAINER_ATTRIBUTES
from .trainer_uses import uses

_AVERAGING = ("callbacks.ema averages the weights", "callbacks=[default,ema]")
_COUNTERPARTS = {
    "Checkpoint": (
        "checkpoints are written by callbacks.checkpoint (monitor, mode, save_top_k, every_n_steps)",
        "callbacks.checkpoint.save_top_k=3",
    ),
    "EarlyStopping": ("callbacks.early_stopping stops early", "callbacks=[default,early_stopping]"),
    "StochasticWeightAveraging": ("callbacks.swa averages the weights", "callbacks=[default,swa]"),
    "WeightAveraging": _AVERAGING,
    "ProgressBar": ("callbacks.progress shows the progress", "trainer.enable_progress_bar=true"),
    "ModelSummary": ("the first line of a run shows the number of trained parameters", ""),
    "Timer": ("trainer.max_time limits the time of a training", "trainer.max_time=00:12:00:00"),
    "ThroughputMonitor": ("samples_per_second and time/* are logged without it", ""),
    "GradientAccumulationScheduler": (
        "the batches of a step are the same in every epoch, trainer.accumulate_grad_batches",
        "trainer.accumulate_grad_batches=2",
    ),
    "BatchSizeFinder": ("a sweep tries batch sizes", "-m batch_size=64,128,256"),
    "LearningRateFinder": (
        "a sweep tries learning rates",
        "-m optimizer.lr=0.1,0.03,0.01",
    ),
    "BaseFinetuning": (
        "strategies divide the parameters before the training, so none can be added to the optimizer in it; "
        "parameter groups of the task's configure_optimizers train layers at rates of their own",
        "",
    ),
    "ModelPruning": ("strategies divide the parameters before the training, so none can be replaced in it", ""),
    "BasePredictionWriter": ("Leyden has no prediction loop", ""),
}
"""Alternative in Leyden by Lightning class, and a remedy. Covers derived classes."""
_NEED_A_LOGGER = ("LearningRateMonitor", "DeviceStatsMonitor")


class Refusal(NamedTuple):
    """Reason for refusing a callback, and what to type instead ("" without an alternative)."""

    text: str
    remedy: str


def is_lightning_callback(cls: object) -> bool:
    """Whether a class is derived from the Callback of lightning.pytorch or pytorch_lightning."""
    return isinstance(cls, type) and lightning_base(cls, "Callback") is not None


def refusal(cls: type) -> Refusal | None:
    """The reason why the loop cannot call a Lightning callback; None: it can."""
    for base in cls.__mro__:
        if of_lightning(base) and base.__name__ in _COUNTERPARTS:
            text, remedy = _COUNTERPARTS[base.__name__]
            derived = "" if base is cls else f" (a {base.__name__})"
            return Refusal(f"Lightning's {cls.__name__}{derived} is not offered: {text}", remedy)
    for use in uses(cls, trainer="trainer"):
        if use.name not in TRAINER_ATTRIBUTES:
            where = f"trainer.{use.name} ({use.file}:{use.line})"
            return Refusal(f"{cls.__name__} reads {where}, which Leyden's trainer does not have", "")
    return None


def needs_a_logger(cls: type) -> bool:
    """Whether a callback raises without a logger."""
    return any(of_lightning(base) and base.__name__ in _NEED_A_LOGGER for base in cls.__mro__)
