"""Memory of a training step: when each storage is allocated and freed, and what for."""

import weakref
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from .quantities import PeakMemory

Kind = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]


class StorageLifetimes:
    """Allocations and releases in their order, by storage: views of one are one, operations in place none.

    Storages are followed by weak references, so the program that is watched decides when they are freed.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """Numbers of the storages that live, by id."""
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._kinds: list[Kind] = []
        self._sizes: list[int] = []
        self._events: list[tuple[int, int]] = []
        """Number of a storage, and 1 or -1."""

    def follow(self, tensors: Iterable[Tensor], kind: Kind = "temporary") -> None:
        """Follow the storages of tensors from now on; those that are followed already stay as they are."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if id(storage) not in self._numbers:
                self._begin(storage, kind)

    def hold_briefly(self, size: int) -> None:
        """Note memory that an operation holds while it computes, its results included."""
        self._events += [(len(self._sizes), 1), (len(self._sizes), -1)]
        self._kinds.append("temporary")
        self._sizes.append(size)

    def label(self, tensors: Iterable[Tensor], kind: Kind) -> None:
        """Say what storages are for, also before this moment."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            number = self._numbers.get(id(storage))
            if number is None:
                self._begin(storage, kind)
            else:
                self._kinds[number] = kind

    def label_living(self, since: int, kind: Kind) -> None:
        """Say what the temporary storages are for that live, and began at or after a mark."""
        for number in self._numbers.values():
            if number >= since and self._kinds[number] == "temporary":
                self._kinds[number] = kind

    def mark(self) -> int:
        """The number of the next storage."""
        return len(self._sizes)

    def peak(self) -> PeakMemory:
        """What is held at the moment at which it is the most."""
        now = most = 0
        best = 0
        for index, (number, change) in enumerate(self._events):
            now += change * self._sizes[number]
            if now > most:
                most, best = now, index + 1
        held = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "temporary"), 0.0)
        for number, change in self._events[:best]:
            held[self._kinds[number]] += change * self._sizes[number]
        return PeakMemory(**held)

    def _begin(self, storage: torch.UntypedStorage, kind: Kind) -> None:
        key, number = id(storage), len(self._sizes)

        def end(_: object) -> None:
            self._events.append((number, -1))
            del self._numbers[key], self._references[key]

        self._numbers[key] = number
        self._references[key] = weakref.ref(storage, end)
        self._kinds.append(kind)
        self._sizes.append(storage.nbytes())
        self._events.append((number, 1))
