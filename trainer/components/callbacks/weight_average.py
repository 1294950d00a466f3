"""An average of the weights in place of the weights: what EMA and SWA have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override

from ...base.errors import Problem
from ...core.callback_contract import CallbackContract
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, TensorSlice
from ...core.state import RunState


class WeightAverage(CallbackContract):
    """Holds, saves and restores an average, which takes the weights' place in evaluation.

    Each worker averages the parameters, or the parts of parameters, that it holds; a checkpoint has the average in the
    layout of one device. The average of bfloat16 or float16 weights is kept in float32, as their rounding would lose
    the updates.
    """

    averages_weights: ClassVar[bool] = True

    NUMBERS: ClassVar[tuple[str, ...]] = ()
    """Whole numbers of the state."""

    def __init__(self) -> None:
        self.average: list[Tensor] = []
        """This worker's slices, in the order of the task's parameters."""
        self._state: RunState | None = None
        self._loaded: dict[str, Any] | None = None

    @override
    def pieces(self) -> dict[str, TensorSlice]:
        """This worker's slices of divided parameters, for its own file."""
        if self._state is None or not self.average:
            return {}
        return self._state.contract.tensor_slices(self._state.task, self._named_averages(self._state))

    @override
    def load_state_dict(self, state: dict[str, Any], shards: CheckpointShards | None = None, prefix: str = "") -> None:
        """Keep the state until the task's parameters are known.

        Args:
            shards: per-worker files of the checkpoint.
            prefix: of the names of `pieces` in them.
        """
        if state:
            self._loaded = {**state, "shards": shards, "prefix": prefix}

    @override
    def check_loaded(self, state: RunState) -> None:
        """
        Raises:
            ValueError, LookupError, AttributeError: the loaded state is none of this task's.
        """
        loaded = self._loaded
        if loaded is None:
            return
        if not all(isinstance(loaded[name], int) for name in self.NUMBERS):
            raise ValueError(f"{', '.join(self.NUMBERS)} are no whole numbers")
        average, shards = loaded["average"] if loaded.get("epochs") != 0 else {}, loaded["shards"]
        if not isinstance(average, dict) or not average:
            return
        shapes = state.contract.full_shapes(state.task)
        for name, _ in state.task.named_parameters():
            is_divided = shards is not None and f"{loaded['prefix']}{name}" in shards.tensors
            if name not in shapes or is_divided:
                continue
            if average[name].shape != shapes[name]:
                raise ValueError(f"the average of {name} has shape {tuple(average[name].shape)}")
            if not average[name].isfinite().all():
                raise ValueError(f"the average of {name} has NaN or infinite values")

    def whole_average(self, state: RunState) -> dict[str, Tensor]:
        """The average by the parameters' names, in one device's layout except for `pieces`. Collective."""
        return state.contract.full_tensors(state.task, self._named_averages(state))

    def own_parts(self, state: RunState, loaded: dict[str, Any]) -> list[Tensor]:
        """The average that a checkpoint has, as this worker holds it."""
        parameters = dict(state.task.named_parameters())
        saved = loaded["average"]
        if not isinstance(saved, dict):  # a list in the order of the parameters
            saved = dict(zip(parameters, saved, strict=True))
        own = state.contract.local_tensors(state.task, saved, loaded["shards"], loaded["prefix"])
        return [precise(own[name].to(w.device)).clone() for name, w in parameters.items()]

    @contextmanager
    def in_place(self, state: RunState) -> Iterator[None]:
        """The average in place of the task's weights."""
        # by object: FSDP2 replaces parameters by gathered ones during evaluation
        with replace_values(
            [local(average) for average in self.average], [local(w.data) for w in state.task.parameters()]
        ):
            yield

    def _named_averages(self, state: RunState) -> dict[str, Tensor]:
        return {name: a for (name, _), a in zip(state.task.named_parameters(), self.average, strict=True)}


def decay_out_of_range(key: str, decay: Any, usual: float) -> Iterator[Problem]:
    """The problem of what an average keeps of itself in an update; none if it is at least 0 and less than 1."""
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0.0 <= decay < 1.0:
        yield Problem(key, "must be at least 0 and less than 1", decay, f"{key}={usual}")


def steps_out_of_range(key: str, steps: Any, usual: int) -> Iterator[Problem]:
    """The problem of a number of steps from one update to the next; none if it is whole and at least 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        yield Problem(key, "must be a whole number of at least 1", steps, f"{key}={usual}")


@contextmanager
def replace_values(values: list[Tensor], targets: list[Tensor]) -> Iterator[None]:
    """Values in place of those that the targets have."""
    kept = [target.clone() for target in targets]
    _copy(values, targets)
    try:
        yield
    finally:
        _copy(kept, targets)


@torch.no_grad()
def _copy(values: list[Tensor], into: list[Tensor]) -> None:
    for value, target in zip(values, into, strict=True):
        target.copy_(value)


def local(tensor: Tensor) -> Tensor:
    """This worker's shard of an FSDP2 tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32 if its type is less precise."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
