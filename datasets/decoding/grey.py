"""Grey pixels as RGB whose three channels share the memory of one."""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


def as_rgb(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[height, width, 3] of [height, width], not copied."""
    return as_strided(grey, (*grey.shape, 3), (*grey.strides, 0))


def is_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether pixels [height, width, 3] are of `as_rgb`."""
    return pixels.strides[2] == 0
