"""Settings of this process: memory allocator, garbage collector, environment, name, parent; and its end."""

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

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


@contextmanager
def frozen_imports() -> Generator[None]:
    """Context of imports without the garbage collector, which takes a fifth of the time of importing PyTorch and
    Lightning, and finds next to nothing there.

    What exists at its end is frozen: else the first collection goes through all of it, and copies what is shared with
    forked processes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextmanager
def restored_environment() -> Generator[None]:
    """Context after which environment variables have the values that they had before it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def default_variable(name: str, value: str) -> Generator[None]:
    """Context in which an environment variable has a value, unless its user has set another."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # prctl.h


def end_with_parent(parent: int, number: signal.Signals) -> bool:
    """Make the kernel send `number` to this process when its parent dies. False if the parent is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def is_running(process: int) -> bool:
    """Whether a process is there, and more than a zombie."""
    if process == os.getppid():
        return True
    import psutil  # not at the top: a mistake in a config waits for no import that only readers need

    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def adopt_orphans(adopt: bool) -> None:
    """Set whether this process becomes the parent of processes below it whose own parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def set_name(name: str) -> None:
    """Set this process's name in `ps -o comm`, `top` and the kernel's log, of which Linux keeps 15 bytes.

    The command line and environment in /proc are those of the process that it was forked from.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def flush_files() -> None:
    """Write what files that are open in this process still buffer.

    The interpreter does so for each file that it frees, and those of a run's callbacks it does not free.
    """
    streams = io.IOBase.__base__
    assert streams is not None
    # by type: isinstance would ask `__class__`, which makes a lazily imported module import itself
    opened = [known for known in gc.get_objects() if issubclass(type(known), streams)]
    for file in [sys.stdout, sys.stderr, *opened]:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            file.flush()


def exit_at_once(code: int) -> NoReturn:
    """Exit without the interpreter's shutdown: files are flushed, those of C libraries too, and no more."""
    flush_files()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def end_process(code: int) -> NoReturn:
    """End this process as the interpreter does, but for its objects: threads are joined, exit handlers called, files
    flushed.

    To free the objects of torch and Lightning one by one takes a quarter of a second, and copies the pages that a
    forked process shares.
    """
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  # as multiprocessing's processes end
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    try:
        sys.stdout.flush()
    except ValueError:
        pass  # it is closed
    except OSError as error:
        print(error, file=sys.stderr)
        code = 120  # as the interpreter
    exit_at_once(code)
