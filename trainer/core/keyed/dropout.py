"""Dropout whose masks are functions of (seed, epoch, sample, layer), independent of the worker.

torch's dropout draws from the generator of the process, so two workers would drop other units than one. Here each
unit's draw is a hash of the sample's key and the unit's index, so that any split of samples, channels or positions over
workers drops the same units, on CPU and GPU alike.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...base.device_copy import on_device
from ...base.rng import mix
from ..torch_compat import in_backward


class SampleKeys:
    """Keys of the samples in the current batch, 63 random bits each.

    Args:
        device: where layers draw; None: where the keys are.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.keys: Tensor | None = None
        """int64, shape (batch,); None if the data has no keys (loaders of a LightningDataModule)."""
        self._layers: list[KeyedDropout] = []
        self._salts = torch.empty(0, 1, dtype=torch.int64)

    @property
    def has_layers(self) -> bool:
        return bool(self._layers)

    def add(self, layer: "KeyedDropout") -> None:
        """Give a layer its words of this batch and of those to come."""
        self._layers.append(layer)
        salt = torch.tensor([[mix(layer.layer, 1)]], dtype=torch.int64, device=self._salts.device)
        self._salts = torch.cat([self._salts, salt])
        self.set(self.keys)

    def set(self, keys: Tensor | None) -> None:
        """Begin a batch: one hash of all layers and samples, and one copy, for which the host does not wait."""
        self.keys = keys
        for layer in self._layers:
            layer.calls, layer.words = 0, None
        if keys is None or not self._layers:
            return
        self._salts = self._salts.to(keys.device)
        words = (hash_keys(keys + self._salts) >> 32).to(torch.int32)
        if self.device is not None:
            words = on_device(words, self.device)
        for layer, own in zip(self._layers, words.unbind(), strict=True):
            layer.words = own


class KeyedDropout(nn.Module):
    """Dropout like nn.Dropout's (Srivastava et al. 2014): zeroes with probability p, scales the rest by 1 / (1 - p).

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
        self.region: Sequence[tuple[int, int]] | None = None
        """Region of a worker that computes only a part of the layer: offset of the part and size of the whole, for each
        dimension after the batch. None: the whole layer."""
        self.calls = 0
        """Calls in the current batch; each draws anew."""
        self._hashes: tuple[object, Tensor] | None = None
        self.words: Tensor | None = None
        """int32, shape (batch,): keys of the current samples in this layer. An attribute of the layer, without a number
        to look it up by, so that one compiled graph serves all layers."""
        self.draw_by(sample_keys)

    def draw_by(self, sample_keys: SampleKeys) -> None:
        """Draw by these keys from now on."""
        self.sample_keys = sample_keys
        sample_keys.add(self)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        dropped = self.draw_mask(input)
        return self._from_process_rng(input) if dropped is None else self._without(input, dropped)

    def draw_mask(self, input: Tensor) -> Tensor | None:
        """Mask of dropped units: bool, shape (batch, ...) with 1 for each dimension that shares a draw.

        None, without drawing, if the current batch has no keys, or the input has not one row for each.
        """
        words = self.words
        if words is None or input.ndim == 0 or len(words) != len(input):
            return None
        drawn = self._drawn_sizes(input)
        draws = self._draw(words.to(input.device), drawn)
        dropped = draws <= max(int(self.p * 2**32) - 1, 0) - 2**31
        return dropped.view(*dropped.shape, *[1] * (input.ndim - 1 - len(drawn)))

    def _drawn_sizes(self, input: Tensor) -> Sequence[int]:
        """Sizes of the dimensions after the batch with draws of their own; later dimensions share one."""
        return input.shape[1 : input.ndim - self.shared]

    def _without(self, input: Tensor, dropped: Tensor) -> Tensor:
        if self.p == 1.0:
            return input * 0.0
        return (input * (1.0 / (1.0 - self.p))).masked_fill_(dropped, 0.0)

    def _from_process_rng(self, input: Tensor) -> Tensor:
        """Dropout of the replaced module, from the process's generator."""
        return F.dropout(input, self.p)

    def _draw(self, words: Tensor, shape: Sequence[int]) -> Tensor:
        """Uniform integers from -2**31 to 2**31 - 1, shape (batch, *shape)."""
        call = self._call()
        if call:
            words = mix_bits(words + _as_signed(call * _GOLDEN))
        # hashed once, the indices need only the second half of the mix with each sample's key; the comparison reads
        # the upper bits, so its last step is left out
        draws = (words.view(-1, *[1] * len(shape)) ^ self._index_hashes(shape, words.device)).mul_(_FIRST)
        return draws.bitwise_xor_((draws >> 15).bitwise_and_(2**17 - 1)).mul_(_SECOND)

    def _call(self) -> int:
        """Number of this call in the current batch."""
        if not torch.compiler.is_compiling() and in_backward():  # torch.utils.checkpoint computes the forward again
            if self.calls > 1:
                raise RuntimeError(
                    f"a dropout layer that is called {self.calls} times for a batch cannot be recomputed by activation "
                    "checkpointing with the same masks: use one layer for each call, or trainer.exact_dropout=false"
                )
            return 0
        self.calls += 1
        return self.calls - 1

    def _index_hashes(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Hash of each unit's index within one sample of the whole layer: int32, that shape."""
        if torch.compiler.is_compiling():  # a part of the kernel, and no memory
            return self._compute_hashes(shape, device)
        use = (tuple(shape), None if self.region is None else tuple(self.region), device)
        if self._hashes is None or self._hashes[0] != use:
            self._hashes = use, self._compute_hashes(shape, device)
        return self._hashes[1]

    def _compute_hashes(self, shape: Sequence[int], device: torch.device) -> Tensor:
        region = self.region or [(0, size) for size in shape]
        places = torch.zeros([1] * len(shape), dtype=torch.int32, device=device)
        stride = 1
        for axis in range(len(shape) - 1, -1, -1):
            offset, whole = region[axis]
            along = [1] * len(shape)
            along[axis] = -1
            indices = torch.arange(offset, offset + shape[axis], dtype=torch.int32, device=device)
            places = places + indices.view(along) * _as_signed(stride)
            stride *= whole
        return mix_bits(places)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class KeyedAlphaDropout(KeyedDropout):
    """Dropout like nn.AlphaDropout's (Klambauer et al. 2017, arXiv 1706.02515, section 3): dropped units become SELU's
    lower limit, and an affine map keeps mean and variance.

    Args:
        whole_channels: as nn.FeatureAlphaDropout, one draw for each channel.
    """

    def __init__(self, p: float, layer: int, sample_keys: SampleKeys, whole_channels: bool):
        super().__init__(p, layer, 0, sample_keys)
        self.whole_channels = whole_channels
        self.original = "FeatureAlphaDropout" if whole_channels else "AlphaDropout"

    def _drawn_sizes(self, input: Tensor) -> Sequence[int]:
        return input.shape[1:2] if self.whole_channels else input.shape[1:]

    def _without(self, input: Tensor, dropped: Tensor) -> Tensor:
        if self.p == 1.0:
            return input * 0.0
        kept = (~dropped).to(input.dtype)
        scale = ((_SELU_LIMIT**2 * self.p + 1.0) * (1.0 - self.p)) ** -0.5
        shift = (kept - (1.0 - self.p)) * (_SELU_LIMIT * scale)
        return input * kept * scale + shift

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

    def _drawn_sizes(self, input: Tensor) -> Sequence[int]:
        return ()

    def _without(self, input: Tensor, dropped: Tensor) -> Tensor:
        return super()._without(input, dropped) if self.scale_by_keep else input.masked_fill(dropped, 0.0)

    def _from_process_rng(self, input: Tensor) -> Tensor:
        kept = torch.empty((len(input), *[1] * (input.ndim - 1)), device=input.device).bernoulli_(1.0 - self.p)
        return self._without(input, kept == 0.0)


_SELU_LIMIT = 1.7580993408473766
"""alpha * lambda of SELU: -1 times its value at minus infinity."""
_GOLDEN = 0x9E3779B9


def _as_signed(word: int) -> int:
    """The int32 with the lower 32 bits of a number."""
    return (word + 2**31) % 2**32 - 2**31


_FIRST = _as_signed(0x7FEB352D)
_SECOND = _as_signed(0x846CA68B)


def mix_bits(words: Tensor) -> Tensor:
    """32 well-mixed bits of each int32 (C. Wellons' finalizer "lowbias32", 2018)."""
    words = words ^ ((words >> 16) & (2**16 - 1))  # shifts keep the sign: the mask makes them logical
    words *= _FIRST
    words ^= (words >> 15) & (2**17 - 1)
    words *= _SECOND
    words ^= (words >> 16) & (2**16 - 1)
    return words


def hash_keys(words: Tensor) -> Tensor:
    """64 well-mixed bits of each int64 (SplitMix64's finalizer, Steele et al. 2014)."""
    bits = words ^ ((words >> 30) & (2**34 - 1))
    bits *= 0xBF58476D1CE4E5B9 - 2**64
    bits ^= (bits >> 27) & (2**37 - 1)
    bits *= 0x94D049BB133111EB - 2**64
    bits ^= (bits >> 31) & (2**33 - 1)
    return bits
