"""What only building the parts shows, found before the start: network and optimizer are built without memory.

The network is built, and given one batch, on PyTorch's meta device, where tensors have shapes and no values; that costs
milliseconds and allocates nothing, however large it is. What the meta device cannot compute is left to the worker,
which builds the same parts in earnest. What fails there is built a second time under FakeTensorMode, another
implementation of the same idea, and counts only where it fails again.
"""

import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parameter import is_lazy

from .config import Config, Target
from .errors import CannotStart, Problem
from .faults import built, fault
from .targets import locate

_BATCH = 2
_UNKNOWN_CLASSES = 10
_NOT_THE_USERS = re.compile(r"\bmeta\b|\bmeta_|autocast|\bfake|FakeTensor", re.IGNORECASE)
"""In messages of the meta device itself: it cannot compute this, which says nothing of a real device."""
_OF_THE_DEVICE = re.compile(r"fused|capturable|foreach|cuda", re.IGNORECASE)
_DOWNLOADS = ("pretrained", "weights", "checkpoint_path")

Found = dict[str, tuple[Problem, ...]]
"""Problems by the part of the config that they come from: the trials of a sweep share most of it."""


def problems_of_building(config: Config, found: Found) -> Iterator[Problem]:
    """What is wrong with optimizer and network.

    Args:
        found: earlier answers, to which this one is added.
    """
    for check, nodes in ((_optimizer, (config.optimizer, config.task)),
                         (_model, (config.model, config.task, config.dataset))):  # fmt: skip
        key = json.dumps([check.__name__, *(node and node.model_dump(by_alias=True) for node in nodes)], default=str)
        if key not in found:
            with _quiet():
                found[key] = tuple(check(config))
        yield from found[key]


def known_of_samples(dataset: Target) -> tuple[tuple[int, ...] | None, int | None]:
    """Image shape and number of classes that a dataset class declares; None for what only reading it shows.

    Raises:
        CannotStart: its arguments are wrong.
    """
    cls = locate(dataset.target)
    if "declared" in vars(cls):  # a base's would not know the arguments of a class derived from it
        return built("dataset", Target(_target_=f"{dataset.target}.declared", **dataset.arguments))
    shape, classes = getattr(cls, "image_shape", None), getattr(cls, "classes", None)
    shape = tuple(shape) if isinstance(shape, tuple | list) else None
    return shape, classes if isinstance(classes, int) else None


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
        cls([nn.Parameter(torch.zeros(1, 1))], **node.arguments)
    except Exception as error:  # the class may be the user's
        if not _OF_THE_DEVICE.search(str(error)):
            yield fault("optimizer", node, error)


def _overrides(task: Any, hook: str) -> bool:
    return getattr(task, hook, None) is not getattr(LightningModule, hook)


def _model(config: Config) -> Iterator[Problem]:
    node = config.model
    if node is None or any(node.arguments.get(name) for name in _DOWNLOADS):
        return
    try:
        shape, classes = known_of_samples(config.dataset)
    except CannotStart as error:
        yield error.problem or Problem("dataset", str(error))
        return
    if shape is not None:
        problem = _Network(config, node, shape, classes).problem()
        yield from [] if problem is None else [problem]


class _Network:
    """The model of a config, built and called on a batch of zeros, or rather of shapes.

    Args:
        shape: channels, height, width of the images.
        classes: of the data; None: not known before it is read.
    """

    def __init__(self, config: Config, node: Target, shape: tuple[int, ...], classes: int | None):
        self._task = config.task
        self._node = node
        self._shape = shape
        self._classes = classes
        self._try: Callable[..., str | None] | None = vars(locate(config.task.target)).get("try_network")
        """Of a task of ours; None: a user's task, of which it is not known how it calls the network."""

    def problem(self) -> Problem | None:
        """What is wrong with it; None also where that cannot be known without values."""
        try:
            with torch.device("meta"):
                return self._run("meta")
        except Exception as error:
            counts = not _NOT_THE_USERS.search(str(error)) and self._fails_again(error)
            return self._of(error) if counts else None

    def _of(self, error: Exception) -> Problem:
        if isinstance(error, CannotStart) and error.problem is not None:
            return error.problem
        known = fault("model", self._node, error)
        shape = " x ".join(map(str, self._shape))
        return Problem(
            known.key, f"does not take a batch of images of {shape}: {known.text}", known.value, known.remedy
        )

    def _run(self, device: str) -> Problem | None:
        classes = self._classes or _UNKNOWN_CLASSES
        model = built("model", self._node, classes=classes, image_shape=self._shape, seed=0)
        if self._try is None:
            return _lazy(self._node, model)
        wrong = _wrong_kind(self._node, model)
        if wrong is not None:
            return wrong
        built("task", self._task, model=model, classes=classes, image_shape=self._shape)
        with torch.no_grad():
            text = self._try(model, torch.empty(_BATCH, *self._shape, device=device), self._classes)
        return None if text is None else Problem("model", text, self._node.target.rpartition(".")[2])

    def _fails_again(self, error: Exception) -> bool:
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                self._run("cpu")
        except Exception as again:
            return type(again) is type(error) and not _NOT_THE_USERS.search(str(again))
        return False


def _wrong_kind(node: Target, model: Any) -> Problem | None:
    """What is wrong with a network before it is called."""
    name = node.target.rpartition(".")[2]
    if not isinstance(model, nn.Module):
        return Problem("model", f"gives a {type(model).__name__}, and a network is a torch.nn.Module", name)
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
def _quiet() -> Iterator[None]:
    """The worker will print, warn and draw all that again."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        yield
