"""Which of Lightning's callbacks Leyden's loop cannot call, from their classes alone."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

_PACKAGES = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")
_BASES = tuple(f"{package}.callback" for package in _PACKAGES)
_AVERAGING = ("callbacks.ema averages the weights", "callbacks=[default,ema]")
_COUNTERPARTS = {
    "Checkpoint": (
        "checkpoints are written by callbacks.checkpoint (monitor, mode, save_top_k, every_n_steps)",
        "callbacks.checkpoint.save_top_k=3",
    ),
    "EarlyStopping": ("callbacks.early_stopping stops early", "callbacks=[default,early_stopping]"),
    "StochasticWeightAveraging": _AVERAGING,
    "WeightAveraging": _AVERAGING,
    "ProgressBar": ("callbacks.progress shows the progress", "trainer.enable_progress_bar=true"),
    "ModelSummary": ("the first line of a run says how many parameters it trains", ""),
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
"""By the class of Lightning that a callback is or is derived from: what there is in its place, and a remedy."""
_NEED_A_LOGGER = ("LearningRateMonitor", "DeviceStatsMonitor")


class Refusal(NamedTuple):
    """Why a callback is refused, and what to type instead; empty where nothing takes its place."""

    text: str
    remedy: str


def is_lightning_callback(cls: object) -> bool:
    """Whether a class is derived from the Callback of lightning.pytorch or pytorch_lightning."""
    return lightning_base(cls) is not None


def lightning_base(cls: object) -> type | None:
    """Lightning's Callback that a class is derived from."""
    bases = getattr(cls, "__mro__", ())
    return next((base for base in bases if base.__name__ == "Callback" and base.__module__ in _BASES), None)


def refusal(cls: type) -> Refusal | None:
    """Why the loop cannot call a Lightning callback; None: it can."""
    for base in cls.__mro__:
        if base.__module__.startswith(_PACKAGES) and base.__name__ in _COUNTERPARTS:
            text, remedy = _COUNTERPARTS[base.__name__]
            derived = "" if base is cls else f" (a {base.__name__})"
            return Refusal(f"Lightning's {cls.__name__}{derived} is not offered: {text}", remedy)
    from .lightning import offered  # with torch and Lightning, which the callback has imported

    names = offered()
    for use in _uses(cls):
        if use.name not in names:
            where = f"trainer.{use.name} ({use.file}:{use.line})"
            return Refusal(f"{cls.__name__} reads {where}, which Leyden's trainer does not have", "")
    return None


def needs_a_logger(cls: type) -> bool:
    """Whether a callback raises where there is no logger."""
    return any(base.__module__.startswith(_PACKAGES) and base.__name__ in _NEED_A_LOGGER for base in cls.__mro__)


class _Use(NamedTuple):
    name: str
    file: str
    line: int


def _uses(cls: type) -> Iterator[_Use]:
    """What the code of a user's class reads of a `trainer`, but for names that it also has as text, as for hasattr."""
    for base in cls.__mro__:
        if base is object or base.__module__.startswith(_PACKAGES):
            continue
        try:
            lines, first = inspect.getsourcelines(base)
            file = inspect.getsourcefile(base) or ""
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):  # made without a file, or not to be read apart from it
            continue
        asked = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        for node in ast.walk(tree):
            if _of_trainer(node) and isinstance(node, ast.Attribute) and node.attr not in asked:
                yield _Use(node.attr, file, first + node.lineno - 1)


def _of_trainer(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "trainer"
    )
