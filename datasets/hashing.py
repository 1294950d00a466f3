"""Random bits as a pure function of a number: cheaper than a generator for each sample."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


def splitmix64(key: int) -> int:
    """64 well-mixed bits of `key`.

    Source: S. Vigna, splitmix64.c, 2015 (public domain), after G. Steele, D. Lea, C. Flood, Fast splittable
    pseudorandom number generators, OOPSLA 2014: the first output of a generator that starts at `key`.
    """
    z = (key + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def splitmix64_each(keys: Sequence[int]) -> NDArray[np.uint64]:
    """`splitmix64(key)` of each key, from 0 to 2^64 - 1."""
    z = np.array(keys, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
