"""Dropout whose masks are functions of (seed, epoch, sample, layer), whoever computes the sample.

torch's own draws from the stream of the process: two workers would drop other units than one. Here each unit's draw is
a hash of the sample's key and the unit's place, so that any split of samples, channels or positions over workers drops
the same units, on CPU and GPU alike.
"""

from collections.abc import Sequence
from typing import Any, TypeVar
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .random_state import mix

Module = TypeVar("Module", bound=nn.Module)

_KINDS: dict[type, int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""Trailing dimensions that share one draw: nn.Dropout2d drops whole channels."""


class SampleKeys:
    """Who is in the batch that is computed now: one key (63 random bits) a sample."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        """int64, shape (batch,); None where the data has no keys (a LightningDataModule's loaders)."""
        self.batches = 0
        """Batches so far: a Dropout that is called twice for one batch draws anew."""

    def set(self, keys: Tensor | None) -> None:
        self.keys = keys
        self.batches += 1


class KeyedDropout(nn.Module):
    """As nn.Dropout and its kin (Srivastava et al. 2014): zeroes with probability p, scales the rest by 1 / (1 - p).

    Input: (batch, ...), one row for each of the current sample keys; anything else draws from the process's stream.

    Args:
        p: probability of zero.
        layer: number that tells this layer from others.
        shared: trailing dimensions that share one draw.
        sample_keys: the keys of the current batch.
    """

    def __init__(self, p: float, layer: int, shared: int, sample_keys: SampleKeys):
        super().__init__()
        self.p = p
        self.layer = layer
        self.shared = shared
        self.sample_keys = sample_keys
        self.region: Sequence[tuple[int, int]] | None = None
        """Where a strategy gave this worker only a part of the layer: for each dimension after the batch, the offset
        of the part and the size of the whole. None: the input is whole."""
        self._batch = -1
        self._calls = 0

    def forward(self, input: Tensor) -> Tensor:
        keys = self.sample_keys.keys
        if not self.training or self.p == 0.0:
            return input
        if keys is None or len(keys) != len(input):
            return F.dropout(input, self.p)
        threshold = min(int(self.p * _WORDS), _WORDS - 1)
        kept = self._draw(keys.to(input.device), input.shape[1 : input.ndim - self.shared]) >= threshold
        kept = kept.view(*kept.shape, *[1] * self.shared)
        return input * kept.to(input.dtype).div_(max(1.0 - self.p, 1e-30))

    def _draw(self, keys: Tensor, shape: Sequence[int]) -> Tensor:
        """Uniform integers from 0 to 2**63 - 1, shape (batch, *shape)."""
        if self._batch != self.sample_keys.batches:
            self._batch, self._calls = self.sample_keys.batches, 0
        self._calls += 1
        start = hashed(keys + mix(self.layer, self._calls))
        places = self._places(shape, keys.device)
        return hashed(start.view(-1, *[1] * len(shape)) + places * _GOLDEN) & (_WORDS - 1)

    def _places(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Number of each unit within one sample of the whole layer."""
        region = self.region or [(0, size) for size in shape]
        places = torch.zeros([1] * len(shape), dtype=torch.int64, device=device)
        stride = 1
        for axis in range(len(shape) - 1, -1, -1):
            offset, whole = region[axis]
            along = [1] * len(shape)
            along[axis] = -1
            places = places + (torch.arange(shape[axis], device=device) + offset).view(along) * stride
            stride *= whole
        return places

    def extra_repr(self) -> str:
        return f"p={self.p}"


_WORDS = 2**63
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def hashed(words: Tensor) -> Tensor:
    """64 well-mixed bits of each int64 (SplitMix64's finalizer, Steele et al. 2014)."""
    mixed = words ^ ((words >> 30) & (2**34 - 1))  # int64 shifts keep the sign: the mask makes them logical
    mixed *= _FIRST
    mixed ^= (mixed >> 27) & (2**37 - 1)
    mixed *= _SECOND
    mixed ^= (mixed >> 31) & (2**33 - 1)
    return mixed


def keyed(task: Module, sample_keys: SampleKeys, compiled: bool) -> Module:
    """The task with every dropout layer replaced. Layers are told apart by their names."""
    for name, module in list(task.named_modules()):
        shared = _KINDS.get(type(module))
        if shared is None:
            continue
        assert isinstance(module, _DropoutNd)
        layer: Any = KeyedDropout(module.p, crc32(name.encode()), shared, sample_keys)
        layer.train(module.training)
        if compiled:  # its counters would make the compiler start anew in every step
            layer.forward = torch.compiler.disable(layer.forward)
        parent, _, own = name.rpartition(".")
        setattr(task.get_submodule(parent), own, layer)
    return task
