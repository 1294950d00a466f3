"""The teacher of a task that learns from one: built and loaded by every worker, outside of the task's modules."""

import torch
from torch import Tensor, nn

from ...base import rng
from ...base.errors import CannotStart, ConfigError, Problem
from ...base.log import log
from ...base.paths import shorten_path
from ...config.faults import at_fault
from ...config.locate import make_importable
from ...config.schema import PinnedWeights
from ...config.targets import build
from ...config.teacher import KEY, Teacher, describe_teacher
from ...core.checkpoints.checkpoint_content import not_finite
from ...core.protocols import Student
from ...core.state import RunState
from ..init_weights import weights_of


def load_teacher(state: RunState) -> None:
    """Give a task that learns from a teacher its network. Every worker must call it, before random states are restored.

    Raises:
        CannotStart: it cannot be read, has changed since the run was frozen, or does not fit the images or classes.
    """
    task = state.task
    if not isinstance(task, Student):
        return
    given = task.teacher
    source = given if isinstance(given, str) else PinnedWeights.model_validate(given)
    named = source if isinstance(source, str) else source.source
    if isinstance(source, str):
        teacher = _describe_source(source)
        weights = weights_of(KEY, str(teacher.file))
    else:
        weights = weights_of(KEY, source)  # first: it says what is missing or has changed
        teacher = _describe_source(source.path)
    network = _build_network(state, teacher)
    _load(network, weights, named, teacher)
    network = state.fabric.strategy.precision.convert_module(network).to(state.fabric.device)
    if state.config.trainer.channels_last:
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    task.set_teacher(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    log.info("task.teacher %s: %s, %s parameters", named, shorten_path(teacher.file), f"{parameters:,}")


def _describe_source(source: str) -> Teacher:
    try:
        return describe_teacher(source)
    except ConfigError as error:
        raise CannotStart(error.problems[0]) from error


def _build_network(state: RunState, teacher: Teacher) -> nn.Module:
    """Build the teacher's network for the student's images and classes. The process's generators stay as they are."""
    make_importable(teacher.python_path)
    known = {"classes": state.data.classes, "image_shape": state.data.image_shape}
    cpu = torch.device("cpu")
    before = rng.capture(cpu)
    try:
        with at_fault(KEY, teacher.network):
            return build(teacher.network, **{k: v for k, v in known.items() if v is not None}, seed=0)
    finally:
        rng.restore(before, cpu)


def _load(network: nn.Module, weights: dict[str, Tensor], named: str, teacher: Teacher) -> None:
    if teacher.file.suffix != ".safetensors":  # a checkpoint holds the whole task
        weights = {name.removeprefix("model."): w for name, w in weights.items() if name.startswith("model.")}
    own = {name: value.shape for name, value in network.state_dict().items()}
    wrong = [
        f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, not {tuple(shape)}"
        for name, shape in own.items()
        if name not in weights or weights[name].shape != shape
    ]
    wrong += [f"{name} is not in it" for name in weights if name not in own]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        text = f"its weights do not fit its network for the images and classes here: {'; '.join(wrong[:3])}"
        raise CannotStart(Problem(KEY, text + more, named, f"{KEY}=RUN, trained on images like these"))
    broken = not_finite(weights)
    if broken is not None:
        raise CannotStart(Problem(KEY, f"{broken} has NaN or infinite values", named))
    network.load_state_dict(weights)
