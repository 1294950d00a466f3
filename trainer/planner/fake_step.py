"""One optimizer step on fake tensors: what it computes, what it moves, and what it holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.network.adaptive_clipping import clip_adaptively
from ..core.network.trained_network import network_of
from .conv_workspace import workspace
from .fake_training import FakeTraining
from .layer_segments import LayerSegments
from .operation_cost import cost_of
from .quantities import Cost, PeakMemory, StepWork
from .storage_lifetimes import StorageLifetimes
from .torch_compat import TorchDispatchMode, UnsupportedOperatorException


class Recorder(TorchDispatchMode):
    """Counts each operation, and follows the storages that it makes.

    Args:
        on_cpu: the step is computed by the CPU's kernels, whose own memory counts.
    """

    def __init__(self, on_cpu: bool) -> None:
        super().__init__()
        self._on_cpu = on_cpu
        self.segments = LayerSegments()
        self.storages = StorageLifetimes()
        self.update: Cost | None = None
        """Cost of the update, once it has begun."""
        self.operation = ""
        """The last one, for messages."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        self.operation = str(func)
        result = _run(func, args, named)
        if self._on_cpu:
            inside = workspace(func, args, result)
            if inside:
                self.storages.hold_briefly(inside)
        self.storages.follow(_tensors(result))
        cost = cost_of(func, args, named, result)
        if self.update is None:
            self.segments.add(cost)
        else:
            self.update = self.update + cost
        return result


def _run(operation: Any, arguments: Any, named: Any) -> Any:
    """An operation on fake tensors. One that only changes tensors in place makes no others, so that those that torch
    cannot run without values, fused steps of optimizers, need not be run."""
    try:
        return operation(*arguments, **named)
    except UnsupportedOperatorException:
        if operation._schema.returns:
            raise
        return None


class _ValuesRead(TorchDispatchMode):
    """Gives 1 for each value that an optimizer reads from a tensor, such as the number of its step."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        return _run(func, args, kwargs or {})


def step(training: FakeTraining, samples: int, recorder: Recorder) -> tuple[StepWork, PeakMemory]:
    """Work and memory of a step that is not the first: optimizer state is there, and gradients are None.

    Args:
        samples: of this device.
        recorder: a new one.
    """
    _warm_up(training)
    task, trainer = training.task, training.config.trainer
    segments, storages = recorder.segments, recorder.storages
    storages.follow([*task.parameters(), *task.buffers()], "parameters")
    storages.follow(_kept_tensors(task), "parameters")
    storages.follow(_tensors(list(training.optimizer.state.values())), "optimizer")
    storages.follow([tensor for average in training.averages for tensor in average], "optimizer")
    followed = network_of(task)
    parts = min(trainer.accumulate_grad_batches, samples)
    with recorder, segments.following(followed, "network"), _gradients_seen(training, segments, storages):
        for part in range(parts):
            size = samples // parts + (part < samples % parts)
            _compute_gradients(training, segments, storages, size, size / samples)
        recorder.update = Cost()
        _update(training)
    work = StepWork(samples, segments.layers(), recorder.update)
    peak = storages.peak()
    training.optimizer.zero_grad(set_to_none=True)
    return work, peak


def _warm_up(training: FakeTraining) -> None:
    """What only the first step does: optimizer state is made, and layers compute what they keep."""
    for parameter in training.trained:
        parameter.grad = torch.empty_like(parameter)
    with _ValuesRead():
        training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    if training.sample_keys.has_layers:
        with torch.no_grad():
            _loss(training, training.batch(2)[0])  # one sample is too few for batch normalization


def _compute_gradients(
    training: FakeTraining, segments: LayerSegments, storages: StorageLifetimes, samples: int, weight: float
) -> None:
    segments.begin_part("batch")
    since = storages.mark()
    batch, kept = training.batch(samples)
    storages.label(kept, "activations")
    segments.begin_forward("task")
    loss = _loss(training, batch)
    storages.label_living(since, "activations")
    if loss.dtype in (torch.bfloat16, torch.float16):
        loss = loss.float()
    if weight != 1.0:
        loss = loss * weight
    if training.config.trainer.precision == "16-mixed":
        loss = loss * torch.zeros(())
    loss.backward()


def _loss(training: FakeTraining, batch: Any) -> Tensor:
    with training.precision.forward_context():
        output: Any = training.task.training_step(batch, 0)
    return output["loss"] if isinstance(output, dict) else output


@torch.no_grad()
def _update(training: FakeTraining) -> None:
    trainer, parameters = training.config.trainer, training.trained
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if trainer.precision == "16-mixed" and not getattr(training.optimizer, "_step_supports_amp_scaling", False):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(()), torch.zeros(()))
    if trainer.gradient_clip_val is not None:
        _clip(training.task, trainer.gradient_clip_algorithm, trainer.gradient_clip_val)
    with torch.enable_grad(), _ValuesRead():
        training.optimizer.step()
    for average in training.averages:
        weights = [w.detach().to(a.dtype) for w, a in zip(training.task.parameters(), average, strict=True)]
        torch._foreach_lerp_(average, weights, 0.1)


def _clip(task: nn.Module, algorithm: str, value: float) -> None:
    if algorithm == "norm":
        nn.utils.clip_grad_norm_(task.parameters(), value)
    elif algorithm == "value":
        nn.utils.clip_grad_value_(task.parameters(), value)
    else:
        clip_adaptively(task, value)


@contextmanager
def _gradients_seen(training: FakeTraining, segments: LayerSegments, storages: StorageLifetimes) -> Iterator[None]:
    """Note which layers' backward gives which gradients, in the first part of a step."""
    seen: set[int] = set()

    def ready(parameter: Tensor) -> None:
        assert parameter.grad is not None
        storages.label([parameter.grad], "gradients")
        if id(parameter) not in seen:
            seen.add(id(parameter))
            segments.gradient_ready(parameter.numel())

    handles = [parameter.register_post_accumulate_grad_hook(ready) for parameter in training.trained]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kept_tensors(task: nn.Module) -> Iterator[Tensor]:
    """Tensors that modules keep as plain attributes: a teacher, the hashes of keyed dropout."""
    for module in task.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _tensors(value)


def _tensors(values: Any) -> Iterator[Tensor]:
    """Tensors in nested lists, tuples, dicts and modules."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, nn.Module):
        yield from values.state_dict(keep_vars=True).values()
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
