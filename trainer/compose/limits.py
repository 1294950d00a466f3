"""Limits of a composition: ten lines of `${...}` may stand for gigabytes or hours."""

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getpagesize, getrlimit, setrlimit
from typing import Any

from ..base.errors import ConfigError, refuse

MAX_SECONDS = 30.0  # of computing, in which waiting for a slow file system does not count
MAX_BYTES = 2 << 30  # beyond what the process has
_AGAIN_S = 1.0  # from one exception of the timer's to the next

_enforced = False
_has_expired = False


class _TooLong(BaseException):
    """Raised by the timer, again each second: no `except Exception` of OmegaConf's takes it, a callback of the garbage
    collector's loses it."""


def _expire(*_: Any) -> None:
    global _has_expired
    _has_expired = True
    raise _TooLong


@contextmanager
def in_a_command() -> Generator[None, None, None]:
    """Context of a command, in which the limits count. A program that calls Leyden keeps its signals and limits."""
    global _enforced
    before, _enforced = _enforced, True
    try:
        yield
    finally:
        _enforced = before


@contextmanager
def limit_composition() -> Generator[None, None, None]:
    """While a command reads a composition, in its main thread. May be nested.

    Raises:
        ConfigError: it has taken too long, or too much memory.
    """
    global _has_expired
    nested = signal.getsignal(signal.SIGVTALRM) is _expire
    if not _enforced or nested or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, (soft, hard) = signal.signal(signal.SIGVTALRM, _expire), getrlimit(RLIMIT_DATA)
    _has_expired = False
    show_lost, sys.unraisablehook = sys.unraisablehook, _show_others(sys.unraisablehook)
    try:
        with suppress(OSError):  # no Linux
            used = int(Path("/proc/self/statm").read_text().split()[5]) * getpagesize()
            most = min(each for each in (used + MAX_BYTES, soft, hard) if each != RLIM_INFINITY)
            setrlimit(RLIMIT_DATA, (most, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS, _AGAIN_S)
        yield
    except (_TooLong, Exception) as error:
        if _has_expired:  # what the timer interrupts, OmegaConf's nodes for one, may fail by it in a way of its own
            raise _refusal(f"{MAX_SECONDS:g} s of computing") from None
        if not _of_memory(error):
            raise
        raise _refusal(f"{MAX_BYTES / (1 << 30):.2g} GiB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        sys.unraisablehook = show_lost
        setrlimit(RLIMIT_DATA, (soft, hard))


def _show_others(show: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda lost: None if lost.exc_type is _TooLong else show(lost)


def _of_memory(error: BaseException | None) -> bool:
    # OmegaConf and Hydra raise their own errors from that of Python
    return error is not None and (isinstance(error, MemoryError) or _of_memory(error.__context__))


def _refusal(most: str) -> ConfigError:
    return refuse("${...}", f"composing takes more than {most}", remedy="fewer interpolations of interpolations")
