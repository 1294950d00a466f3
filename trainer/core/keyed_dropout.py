"""Dropout whose masks are functions of (seed, epoch, sample, layer), independent of the worker.

torch's dropout draws from the generator of the process, so two workers would drop other units than one. Here each
unit's draw is a hash of the sample's key and the unit's index, so that any split of samples, channels or positions over
workers drops the same units, on CPU and GPU alike.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base.rng import mix


class SampleKeys:
    """Keys of the samples in the current batch, 63 random bits each."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        """int64, shape (batch,); None if the data has no keys (loaders of a LightningDataModule)."""
        self.batches = 0
        """Number of batches so far; a layer called twice for one batch draws anew."""

    def set(self, keys: Tensor | None) -> None:
        self.keys = keys
        self.batches += 1


class KeyedDropout(nn.Module):
    """As nn.Dropout and its kin (Srivastava et al. 2014): zeroes with probability p, scales the rest by 1 / (1 - p).

    Input: (batch, ...), one row for each of the current sample keys; others draw from the process's generator.

    Args:
        p: probability of zero.
        layer: number that identifies this layer.
        shared: trailing dimensions that share one draw.
        sample_keys: the keys of the current batch.
    """

    original = "Dropout"
    """The replaced class, for messages."""

    def __init__(self, p: float, layer: int, shared: int, sample_keys: SampleKeys):
        super().__init__()
        self.p = p
        self.layer = layer
        self.shared = shared
        self.sample_keys = sample_keys
        self.region: Sequence[tuple[int, int]] | None = None
        """For a worker that computes only a part of the layer: offset of the part and size of the whole, for each
        dimension after the batch. None: the whole layer."""
        self._batch = -1
        self._calls = 0

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        kept = self.kept(input)
        return self._from_process_rng(input) if kept is None else self._dropped(input, kept)

    def kept(self, input: Tensor) -> Tensor | None:
        """Mask of kept units: bool, shape (batch, ...) with 1 for each dimension that shares a draw.

        None, without drawing, if the current batch has no keys, or the input has not one row for each.
        """
        keys = self.sample_keys.keys
        if keys is None or not input.ndim or len(keys) != len(input):
            return None
        threshold = min(int(self.p * _WORDS), _WORDS - 1)
        drawn = self._drawn(input)
        kept = self._draw(keys.to(input.device), drawn) >= threshold
        return kept.view(*kept.shape, *[1] * (input.ndim - 1 - len(drawn)))

    def _drawn(self, input: Tensor) -> Sequence[int]:
        """Sizes of the dimensions after the batch with draws of their own; later dimensions share one."""
        return input.shape[1 : input.ndim - self.shared]

    def _dropped(self, input: Tensor, kept: Tensor) -> Tensor:
        return input * kept.to(input.dtype).div_(max(1.0 - self.p, 1e-30))

    def _from_process_rng(self, input: Tensor) -> Tensor:
        """Dropout of the replaced module, from the process's generator."""
        return F.dropout(input, self.p)

    def _draw(self, keys: Tensor, shape: Sequence[int]) -> Tensor:
        """Uniform integers from 0 to 2**63 - 1, shape (batch, *shape)."""
        if self._batch != self.sample_keys.batches:
            self._batch, self._calls = self.sample_keys.batches, 0
        self._calls += 1
        start = hashed(keys + mix(self.layer, self._calls))
        places = self._unit_indices(shape, keys.device)
        return hashed(start.view(-1, *[1] * len(shape)) + places * _GOLDEN) & (_WORDS - 1)

    def _unit_indices(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Index of each unit within one sample of the whole layer."""
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


class KeyedAlphaDropout(KeyedDropout):
    """As nn.AlphaDropout (Klambauer et al. 2017, arXiv 1706.02515, section 3): dropped units become SELU's lower
    limit, and an affine map keeps mean and variance.

    Args:
        whole_channels: as nn.FeatureAlphaDropout, one draw for each channel.
    """

    def __init__(self, p: float, layer: int, sample_keys: SampleKeys, whole_channels: bool):
        super().__init__(p, layer, 0, sample_keys)
        self.whole_channels = whole_channels
        self.original = "FeatureAlphaDropout" if whole_channels else "AlphaDropout"

    def _drawn(self, input: Tensor) -> Sequence[int]:
        return input.shape[1:2] if self.whole_channels else input.shape[1:]

    def _dropped(self, input: Tensor, kept: Tensor) -> Tensor:
        if self.p == 1.0:
            return input * 0.0
        scale = ((_SELU_LIMIT**2 * self.p + 1.0) * (1.0 - self.p)) ** -0.5
        shift = (kept.to(input.dtype) - (1.0 - self.p)) * (_SELU_LIMIT * scale)
        return input * kept.to(input.dtype) * scale + shift

    def _from_process_rng(self, input: Tensor) -> Tensor:
        return (F.feature_alpha_dropout if self.whole_channels else F.alpha_dropout)(input, self.p, self.training)


class KeyedDropPath(KeyedDropout):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382) as in timm's DropPath: a residual branch is dropped for
    a whole sample.

    Args:
        scale_by_keep: divide kept branches by 1 - p.
    """

    original = "DropPath"

    def __init__(self, p: float, layer: int, sample_keys: SampleKeys, scale_by_keep: bool):
        super().__init__(p, layer, 0, sample_keys)
        self.scale_by_keep = scale_by_keep

    def _drawn(self, input: Tensor) -> Sequence[int]:
        return ()

    def _dropped(self, input: Tensor, kept: Tensor) -> Tensor:
        return super()._dropped(input, kept) if self.scale_by_keep else input * kept.to(input.dtype)

    def _from_process_rng(self, input: Tensor) -> Tensor:
        kept = torch.empty((len(input), *[1] * (input.ndim - 1)), device=input.device).bernoulli_(1.0 - self.p)
        return self._dropped(input, kept)


_SELU_LIMIT = 1.7580993408473766
"""alpha * lambda of SELU: -1 times its value at minus infinity."""
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
