"""What the C library does with memory that a step has freed."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 2**30
_LARGEST = 2**25
"""glibc takes no larger one: blocks above it are always the system's own."""


def keep_freed_memory() -> None:
    """Keep it, to use it in the next step.

    Left alone, glibc gives the activations of a step back to the system and gets them again page by page in the next:
    on the CPU a convolutional net spends a tenth of its time so. What the user has set of malloc wins.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
