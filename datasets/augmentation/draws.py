"""Random numbers of a batch: hashes of its keys, on the device and without waiting for it."""

import zlib
from typing import Any, Protocol

import torch
from torch import Tensor

from ..hashing import splitmix64

KEY_MASK = 2**63 - 1


class Draws(Protocol):
    """What the random changes of a batch may depend on; leyden.trainer.core.protocols.BatchDraws."""

    @property
    def keys(self) -> Tensor:
        """int64 (batch,), 63 random bits by (seed, epoch, sample, view)."""
        ...

    @property
    def sample_keys(self) -> Tensor:
        """int64 (batch,), the same in every epoch."""
        ...

    @property
    def epoch(self) -> int: ...

    @property
    def views(self) -> int:
        """Views of each sample, which are adjacent rows."""
        ...

    @property
    def classes(self) -> int: ...

    @property
    def mean(self) -> Tensor:
        """Of each channel, of values from 0 to 1: (1, channels, 1, 1)."""
        ...

    def _replace(self, **changed: Any) -> Any: ...


def salted(draws: Draws, name: str) -> Draws:
    """The draws with other keys, for the change of this name: independent of those of other names."""
    salt = splitmix64(zlib.crc32(name.encode())) >> 1
    return draws._replace(
        keys=hashed(draws.keys ^ salt) & KEY_MASK, sample_keys=hashed(draws.sample_keys ^ salt) & KEY_MASK
    )


def hashed(words: Tensor) -> Tensor:
    """64 well-mixed bits of each int64: `splitmix64` on tensors."""
    bits = words + (0x9E3779B97F4A7C15 - 2**64)
    bits = bits ^ ((bits >> 30) & (2**34 - 1))  # shifts keep the sign: the mask makes them logical
    bits *= 0xBF58476D1CE4E5B9 - 2**64
    bits ^= (bits >> 27) & (2**37 - 1)
    bits *= 0x94D049BB133111EB - 2**64
    bits ^= (bits >> 31) & (2**33 - 1)
    return bits


def uniform(keys: Tensor, count: int) -> Tensor:
    """Numbers from 0 to 1, 1 excluded: float32 (batch, count), of 24 bits each.

    Args:
        keys: int64 (batch,).
    """
    numbers = torch.arange(1, count + 1, device=keys.device)
    bits = hashed(hashed(keys)[:, None] + numbers)
    return ((bits >> 40) & (2**24 - 1)).to(torch.float32) * 2.0**-24


def between(draws: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers scaled from 0..1 to low..high."""
    return draws * (high - low) + low


def per_image(values: Tensor) -> Tensor:
    """One value for each image, (batch,), in a form that multiplies images (batch, channels, height, width)."""
    return values[:, None, None, None]
