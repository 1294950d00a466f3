"""Gradients in flat vectors, a few layers each: what is exchanged at a time, and what is updated at a time."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..partial_step import Settings


class Bucket:
    """The gradients of a few layers, one after the other in a flat vector.

    A bucket goes round: its gradients are collected, then it is `ready`, its pieces are exchanged, then it is `done`,
    and its parameters are updated from it before the next gradient can come.

    Args:
        parameters: of one type, on one device.
        piece_bytes: what is exchanged at a time; a layer larger than this is exchanged in several pieces.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], piece_bytes: float):
        self.parameters = list(parameters)
        first = self.parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = min(len(self.flat), max(1, -int(-self.flat.nbytes // piece_bytes)))
        self.pieces: tuple[Tensor, ...] = self.flat.tensor_split(pieces)
        parts = self.flat.split([p.numel() for p in parameters])
        self._views = {id(p): _shape_part(part, p) for p, part in zip(self.parameters, parts, strict=True)}
        self.missing: dict[int, nn.Parameter] = {}
        """Parameters whose gradient of this step has not come yet."""
        self.pieces_left = len(self.pieces)
        """Pieces that are still to be exchanged."""
        self.ready = threading.Event()
        self.done = threading.Event()
        self.settings: Settings | None = None
        """Settings with which the update is to be done that has been put off; None if there is none."""
        self.computed: Any = None
        """CUDA only: the event after which the gradients are in the vector."""
        self.averaged: Any = None
        """CUDA only: the event after which the averages are."""

    def expect(self) -> None:
        """Every gradient is still to come."""
        self.missing = {id(p): p for p in self.parameters}

    def collect(self, parameter: nn.Parameter) -> bool:
        """Move a parameter's gradient into the vector. True when this was the last one.

        Raises:
            ValueError: the gradient is sparse, or not expected.
        """
        gradient, view = parameter.grad, self._views[id(parameter)]
        assert gradient is not None
        if id(parameter) not in self.missing:
            raise ValueError(
                "strategy=butterfly: a parameter got two gradients in one backward, or one outside fabric.backward; "
                "checkpointed modules that share it need use_reentrant=False"
            )
        if gradient.is_sparse:
            raise ValueError("strategy=butterfly: sparse gradients cannot be halved: sparse=False in the embedding")
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        parameter.grad = None
        del self.missing[id(parameter)]
        return not self.missing

    def give(self) -> None:
        """The vector's parts become the parameters' gradients."""
        for parameter in self.parameters:
            parameter.grad = self._views[id(parameter)]

    def take_back(self) -> None:
        """The parameters have no gradient any more."""
        for parameter in self.parameters:
            parameter.grad = None


def make_buckets(module: nn.Module, cap_bytes: float) -> list[Bucket]:
    """Buckets of whole layers, those first whose gradients are expected first: the last layers.

    A layer is the parameters that a module holds itself; a larger one than `cap_bytes` has a bucket alone. A
    parameter that several modules hold counts as the first one's, where its gradient is complete last.
    """
    buckets: list[Bucket] = []
    waiting: list[nn.Parameter] = []
    for layer in reversed(_layers(module)):
        alike = not waiting or (waiting[0].dtype, waiting[0].device) == (layer[0].dtype, layer[0].device)
        if waiting and not (alike and _bytes([*waiting, *layer]) <= cap_bytes):
            buckets.append(Bucket(waiting, cap_bytes))
            waiting = []
        waiting = [*waiting, *layer]
    if waiting:
        buckets.append(Bucket(waiting, cap_bytes))
    return buckets


def _layers(module: nn.Module) -> list[list[nn.Parameter]]:
    """Trained parameters of each module in the order of registration, by type and device, each once."""
    seen: set[int] = set()
    layers: list[list[nn.Parameter]] = []
    for owner in module.modules():
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in owner.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        layers += kinds.values()
    return layers


def _bytes(parameters: Sequence[Tensor]) -> int:
    return sum(p.nbytes for p in parameters)


def _shape_part(part: Tensor, parameter: Tensor) -> Tensor:
    """A part of the vector in the parameter's shape, and in its layout where that has no gaps."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    kept = formats.get(parameter.ndim)
    if kept is not None and parameter.is_contiguous(memory_format=kept):
        return part.as_strided(parameter.shape, parameter.stride())
    return part.view(parameter.shape)
