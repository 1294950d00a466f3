"""A run's network for inference: the weights that it evaluates with, its preprocessing, its class names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...base import rng
from ...base.errors import CannotStart
from ...base.signals import StopRequest
from ...config.faults import as_problem
from ...config.lightning.base_classes import overrides
from ...config.schema import Config
from ...config.targets import is_data_module, make_importable
from ...core.callback_contract import CallbackContract
from ...core.checkpoints import checkpoint_io
from ...core.checkpoints.checkpoint_io import DamagedCheckpoint
from ...core.eval_weights import EvalWeights
from ...core.hooks import own_hook, positional
from ...core.state import RunState
from ...core.task_contract import class_probabilities, takes_multi_label
from ...runs.checkpoints import path_of
from ..build import assemble
from ..checkpoints.callback_state import load_callback
from ..checkpoints.restored_parts import restoring_part
from ..kernels import hold_kernels
from ..step_module import run_step


class Predictor:
    """The network of a run as evaluation uses it, in this process, on one device.

    Its weights are those that callbacks choose for evaluation (EMA), its precision and its scores' kernels are the
    run's. Nothing is written into the run folder, and random generators and kernels of the process stay as they are.

    Args:
        config: of the run, for one device (strategy=single).
        checkpoint: None: the newest whole one, or with `best` the best by callbacks.checkpoint.monitor.
        scores: whether the task has to compute scores.

    Attributes:
        checkpoint: the file of the weights.
        step: optimizer steps of training that they have had.
        class_names: names of the classes; their numbers where the dataset has no names.
        train_shape, image_shape: channels, height and width of an image in training, and in evaluation.

    Raises:
        CannotStart: there is no such checkpoint, or the parts of the run cannot be built here.
    """

    def __init__(
        self, config: Config, run_dir: Path, checkpoint: Path | None = None, best: bool = False, scores: bool = True
    ):
        make_importable(config)
        with _generators_kept():
            self._state = _build_state(config, run_dir)
        self.task = self._state.task
        if scores and not overrides(self.task, "predict_step") and not overrides(self.task, "forward"):
            raise CannotStart(f"{type(self.task).__name__} has no forward, which would give the scores of the classes")
        self.checkpoint, self.step = _load(self._state, checkpoint, best)
        data = self._state.data
        self.train_shape: tuple[int, ...] = tuple(int(size) for size in data.image_shape or ())
        crop = preparation_of(config).get("crop")
        self.image_shape = self.train_shape if crop is None else (self.train_shape[0], crop, crop)
        self._names: list[str] | None = list(data.class_names) if data.class_names else None
        self.classes: int | None = data.classes
        self.device = self._state.fabric.device
        self._state.module.eval()
        self._taken = positional(self.task.predict_step) if overrides(self.task, "predict_step") else 1
        # for good: the process does not go on training with these objects. Held, as a context that is collected ends
        self._weights = EvalWeights(self._state)
        self._weights.__enter__()

    @property
    def class_names(self) -> list[str]:
        return self._names or [str(number) for number in range(self.classes or 0)]

    @property
    def normalization(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, of values from 0 to 1: (1, channels, 1, 1)."""
        return self._state.data.normalization

    @property
    def state(self) -> RunState:
        return self._state

    def inputs(self, images: Tensor) -> Tensor:
        """uint8 images (batch, channels, height, width), scaled, normalized and on the device; float ones are inputs
        already."""
        images = images.to(self.device)
        if images.dtype is not torch.uint8:
            return images
        return self._state.data.on_after_batch_transfer((images, None), 0)[0]

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Class scores before softmax or sigmoid (batch, classes), float32 on the CPU.

        Raises:
            ValueError: the task computes no class scores.
        """
        inputs = (self.inputs(images), 0)[: self._taken]
        with hold_kernels(self._state.config):
            found = run_step(self._state, "predict_step", *inputs)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(images):
            made = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{type(self.task).__name__} makes {made} of {len(images)} images, not a score per class")
        return found.float().cpu()

    @property
    def multi_label(self) -> bool:
        """Whether an image has any number of classes, each with a probability of its own."""
        return takes_multi_label(self.task) is True

    def probabilities(self, images: Tensor) -> Tensor:
        """Softmax of the scores (batch, classes), with several labels their sigmoid; float32 on the CPU."""
        return class_probabilities(self.task, self.scores(images))


def preparation_of(config: Config) -> dict[str, Any]:
    """Arguments of a dataset of Leyden's by which it prepares files for evaluation; none of another's."""
    if not config.dataset.target.startswith("leyden.datasets."):
        return {}
    names = ("limits", "resize", "crop", "exif_orientation")
    return {name: value for name, value in config.dataset.arguments.items() if name in names}


def _build_state(config: Config, run_dir: Path) -> RunState:
    """The state of an evaluation, without loggers."""
    off = ("compile", "activation_checkpointing", "exact_dropout", "enable_progress_bar")
    trainer = config.trainer.model_copy(update=dict.fromkeys(off, False))
    dataset = config.dataset if is_data_module(config.dataset.target) else config.dataset.model_copy(
        update={"cache": "none", "threads": 0, "num_workers": 0}
    )  # fmt: skip
    config = config.model_copy(update={"logger": {}, "trainer": trainer, "dataset": dataset, "init_from": None})
    try:
        return assemble(config, run_dir, StopRequest())
    except CannotStart:
        raise
    except (ValueError, OSError) as error:
        raise CannotStart(as_problem(str(error))) from error


def _load(state: RunState, path: Path | None, best: bool) -> tuple[Path, int]:
    """Load the weights that evaluation uses. Returns their file, and the step at which it was written."""
    try:
        found = (
            (path, checkpoint_io.read_to_resume(path)) if path is not None else _choose_checkpoint(state.run_dir, best)
        )
        if found is None:
            raise CannotStart(f"{state.run_dir} has no checkpoint yet: nothing was trained")
        _restore(state, *found)
    except (DamagedCheckpoint, OSError) as error:
        raise CannotStart(str(error)) from error
    return found[0], state.step


def _restore(state: RunState, path: Path, content: dict[str, Any]) -> None:
    for hook in state.hooks.find("on_load_checkpoint"):
        hook(content)
    shards = checkpoint_io.shards_of(path, content)
    with restoring_part(path, "model"):
        state.contract.load_full_state(state.task, None, content, shards)
    state.step, state.epoch = int(content["position"]["step"]), int(content["position"]["epoch"])
    for name, callback in state.callbacks.items():
        if own_hook(callback, CallbackContract.evaluated) is None:
            continue
        with restoring_part(path, f"callbacks.{name}", callback):
            load_callback(name, callback, content["callbacks"].get(name, {}), shards)
            check_loaded = own_hook(callback, CallbackContract.check_loaded)
            if check_loaded is not None:
                check_loaded(state)
        begin = own_hook(callback, CallbackContract.on_fit_start)
        if begin is not None:
            begin(state)


def _choose_checkpoint(run_dir: Path, best: bool) -> tuple[Path, dict[str, Any]] | None:
    newest = checkpoint_io.newest(run_dir, to_evaluate=True)
    if newest is None or not best:
        return newest
    with restoring_part(newest[0], "callbacks.checkpoint"):
        ranked = [
            path_of(run_dir, int(step)) for _, step in newest[1]["callbacks"].get("checkpoint", {}).get("best") or ()
        ]
    if not ranked:
        raise CannotStart(f"{run_dir} has ranked no checkpoint: callbacks.checkpoint.monitor names no metric of it")
    return ranked[0], checkpoint_io.read_to_resume(ranked[0])


@contextmanager
def _generators_kept() -> Iterator[None]:
    cpu = torch.device("cpu")
    before = rng.capture(cpu)
    try:
        yield
    finally:
        rng.restore(before, cpu)
