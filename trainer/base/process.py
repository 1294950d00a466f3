"""Settings of this process: memory allocator, signal at the parent's death."""

import ctypes
import os
import signal
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 2**30
_LARGEST = 2**25
"""glibc's maximum: larger blocks are always mapped by themselves."""


def keep_freed_memory() -> None:
    """Tune glibc to keep freed memory for the next step.

    By default glibc returns the activations of a step to the system, and the next step pays a page fault for each page:
    on the CPU a tenth of the time of a convolutional net. Settings of malloc by the user win.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)


_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> bool:
    """Make the kernel send `number` to this process when its parent dies. False if the parent is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent
