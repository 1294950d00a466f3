"""Trial build before the start: network and optimizer on PyTorch's meta device, without memory.

The network is built and run on one batch of shapes without values, which takes milliseconds and no memory at any size.
Operations that the meta device does not implement are left to the worker. A failure counts only if it repeats under
FakeTensorMode, another implementation of the same idea: errors of the meta device itself must not refuse a run.
"""

import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parameter import is_lazy

from ..base.errors import CannotStart, Problem
from ..config.declared_samples import known_of_samples
from ..config.faults import build_checked, check_built, fault
from ..config.locate import locate, make_importable
from ..config.schema import Config, Target
from ..config.teacher import KEY, describe_teacher, find_teacher
from ..core.task_contract import defines

_BATCH = 2
_UNKNOWN_CLASSES = 10
_EPOCHS = 10_000
"""Epochs in which images of other sizes are looked for."""
_META_LIMITS = re.compile(r"\bmeta\b|\bmeta_|autocast|\bfake|FakeTensor", re.IGNORECASE)
"""Messages about limits of the meta device, which a real device does not have."""
_DEVICE_SPECIFIC = re.compile(r"fused|capturable|foreach|cuda", re.IGNORECASE)
_DOWNLOADS = ("pretrained", "weights", "checkpoint_path")

Found = dict[str, tuple[Problem, ...]]
"""Problems by the part of the config that causes them; trials of a sweep share most parts."""


def problems_of_building(config: Config, found: Found) -> Iterator[Problem]:
    """Problems of building optimizer and network.

    Args:
        found: cache of earlier results, which this call extends.
    """
    network = config.model, config.task, config.dataset
    for check, nodes in ((_optimizer, (config.optimizer, config.task)), (_model, network),
                         (_other_sizes, (*network, config.augment, config.trainer)),
                         (_teacher, (config.task, config.dataset))):  # fmt: skip
        key = json.dumps([check.__name__, *(node and node.model_dump(by_alias=True) for node in nodes)], default=str)
        if key not in found:
            with _quiet():
                found[key] = tuple(check(config))
        yield from found[key]


def _optimizer(config: Config) -> Iterator[Problem]:
    node = config.optimizer
    if node is None or _overrides(locate(config.task.target), "configure_optimizers"):
        return
    cls = locate(node.target)
    closure = inspect.signature(cls.step).parameters.get("closure") if hasattr(cls, "step") else None
    if closure is not None and closure.default is closure.empty:
        text = f"{cls.__name__}'s step computes the loss itself, several times (a closure): not offered"
        yield Problem("optimizer._target_", text, node.target, "optimizer=sgd or optimizer=adamw")
        return
    try:
        check_built("optimizer", node, cls([nn.Parameter(torch.zeros(1, 1))], **node.arguments))
    except CannotStart as error:
        yield error.problem or Problem("optimizer", str(error))
    except Exception as error:  # a user-provided class may raise anything
        if not _DEVICE_SPECIFIC.search(str(error)):
            yield fault("optimizer", node, error)


def _overrides(task: Any, hook: str) -> bool:
    return getattr(task, hook, None) is not getattr(LightningModule, hook)


def _model(config: Config) -> Iterator[Problem]:
    node = config.model
    if node is None or _is_fetched(node):
        return
    try:
        shape, classes = known_of_samples(config.dataset)
    except CannotStart as error:
        yield error.problem or Problem("dataset", str(error))
        return
    if shape is not None:
        problem = _Network(config, node, shape, classes).problem()
        yield from [] if problem is None else [problem]


def _is_fetched(model: Target) -> bool:
    return any(model.arguments.get(name) for name in _DOWNLOADS)


def _other_sizes(config: Config) -> Iterator[Problem]:
    """Sizes of images in later epochs and in evaluation alone, at which a network would fail when much is trained."""
    node, sizes = config.model, list(_sizes(config))
    if node is None or not sizes or _is_fetched(node) or any(_model(config)):
        return
    shape, classes = known_of_samples(config.dataset)
    if shape is None or len(shape) != 3:
        return
    for key, side in sizes:
        problem = _Network(config, node, shape, classes, (shape[0], side, side)).problem()
        if problem is not None:
            yield Problem(key, f"{node.target.rpartition('.')[2]}: {problem.text}", side)
            return


def _sizes(config: Config) -> Iterator[tuple[str, int]]:
    """Pixels a side of images beyond `dataset.image_size`, with the key that sets them."""
    crop = config.dataset.arguments.get("crop")
    if isinstance(crop, int) and hasattr(locate(config.dataset.target), "evaluation_sample"):
        yield "dataset.crop", crop
    if config.augment is not None and hasattr(locate(config.augment.target), "size_at"):
        with suppress(CannotStart):  # found elsewhere
            size_at = build_checked("augment", config.augment).size_at
            sides = {size_at(epoch) for epoch in range(min(config.trainer.max_epochs, _EPOCHS))}
            yield from (("augment.size", side) for side in sorted(sides - {None}))


def _teacher(config: Config) -> Iterator[Problem]:
    """Whether the teacher of task=distillation was trained on images and classes like these, where both are known."""
    source = find_teacher(config.task)
    if source is None:
        return
    teacher = describe_teacher(source)
    make_importable(teacher.python_path)
    try:
        here = known_of_samples(config.dataset)
        there = (teacher.image_shape, teacher.classes) if teacher.dataset is None else known_of_samples(teacher.dataset)
    except Exception:  # of a dataset's class: this dataset's is checked elsewhere, the teacher's is not needed
        return
    for name, own, its in zip(("image shape", "number of classes"), here, there, strict=True):
        if own is not None and its is not None and own != its:
            shown = [" x ".join(map(str, each)) if isinstance(each, tuple) else each for each in (its, own)]
            text = f"its {name} is {shown[0]}, and that of the dataset is {shown[1]}"
            yield Problem(KEY, text, source, f"{KEY}=RUN, trained on images like these")


class _Network:
    """Trial build of a config's model, called on one batch.

    Args:
        shape: channels, height, width of the images.
        classes: of the data; None: unknown before it is read.
        images: channels, height, width of those that it is tried on; None: `shape`.
    """

    def __init__(
        self, config: Config, node: Target, shape: tuple[int, ...], classes: int | None,
        images: tuple[int, ...] | None = None,
    ):  # fmt: skip
        self._task = config.task
        self._node = node
        self._shape = shape
        self._images = images or shape
        self._classes = classes
        task = locate(config.task.target)
        self._try: Callable[..., str | None] | None = task.try_network if defines(task, "try_network") else None
        """How the task calls the network; None: unknown, of a class that does not say so itself."""

    def problem(self) -> Problem | None:
        """The problem; None also if only values could show it."""
        try:
            with torch.device("meta"):
                return self._run("meta")
        except Exception as error:
            counts = not _META_LIMITS.search(str(error)) and self._fails_again(error)
            return self._of(error) if counts else None

    def _of(self, error: Exception) -> Problem:
        if isinstance(error, CannotStart) and error.problem is not None:
            return error.problem
        known = fault("model", self._node, error)
        shape = " x ".join(map(str, self._images))
        return Problem(
            known.key, f"does not take a batch of images of {shape}: {known.text}", known.value, known.remedy
        )

    def _run(self, device: str) -> Problem | None:
        classes = self._classes or _UNKNOWN_CLASSES
        model = build_checked("model", self._node, classes=classes, image_shape=self._shape, seed=0)
        if self._try is None:
            return _lazy(self._node, model)
        wrong = _wrong_kind(self._node, model)
        if wrong is not None:
            return wrong
        build_checked("task", self._task, model=model, classes=classes, image_shape=self._shape)
        with torch.no_grad():
            text = self._try(model, torch.empty(_BATCH, *self._images, device=device), self._classes)
        return None if text is None else Problem("model", text, self._node.target.rpartition(".")[2])

    def _fails_again(self, error: Exception) -> bool:
        from ..core.network.fake_tensors import FakeTensorMode

        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                self._run("cpu")
        except Exception as again:
            return type(again) is type(error) and not _META_LIMITS.search(str(again))
        return False


def _wrong_kind(node: Target, model: Any) -> Problem | None:
    """The problem of an object that cannot be a network."""
    name = node.target.rpartition(".")[2]
    if type(model).forward is nn.Module.forward:
        return Problem("model", "has no method forward", name)
    return _lazy(node, model)


def _lazy(node: Target, model: Any) -> Problem | None:
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    waiting = [f"{path} ({type(module).__name__})" for path, module in modules
               if any(is_lazy(parameter) for parameter in module.parameters(recurse=False))]  # fmt: skip
    if not waiting:
        return None
    text = f"{', '.join(waiting[:3])} gets its shape from the first batch, and the optimizer needs it before: "
    text += "name the number of inputs (the constructor may take image_shape)"
    return Problem("model", text, node.target.rpartition(".")[2])


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """Without output, warnings and random draws: the worker repeats them all."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        yield
