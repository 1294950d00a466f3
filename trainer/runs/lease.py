"""Leading a run or sweep: its lease is taken, renewed while the process lives, and removed at the end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from ..base.errors import ConfigError, refuse
from ..base.paths import shorten_path
from ..base.signals import install_handlers, restore_handlers
from .lease_file import Contender
from .lease_record import FILE, FoundLease, Lease, is_alive, lease_of, read_lease
from .stop_file import StopFile

_RENEWAL_S = 15.0
"""Interval at which the leading process touches the file, for processes on other hosts."""
_POLL_S = 1.0
_RETRY_S = 0.01
"""Interval between attempts while other processes contend for the lease."""
_held: set[tuple[int, Path]] = set()
"""Folders led by a process. The pid: a forked child inherits this set, and leads none of them."""
_dead: set[Lease] = set()
"""Processes on other hosts whose lease has expired while this process waited for it."""


@contextmanager
def hold_lease(folder: Path, listens: bool = True) -> Iterator[None]:
    """Hold the lease of the run or sweep inside the context; where this process holds it already, nothing happens.

    The lease of a process on another host is waited for until it expires.

    Args:
        listens: whether this process handles stop signals: meanwhile one ends it with its exit code. Else `leyden stop`
            reaches a training in it by a file.

    Raises:
        ConfigError: another process leads, or the folder is not writable.
    """
    key = (os.getpid(), folder.resolve())
    if key in _held:
        yield
        return
    contender = Contender(folder / FILE, Lease.own(listens))
    try:
        with _interruptible() if listens else nullcontext():
            _take(contender)
        # the leader is known by it, see holds_open
        descriptor = os.open(contender.file, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        _release(contender)
        text = f"its lease {FILE} cannot be taken: {error.strerror or error}"
        raise refuse(
            "RUN", text, shorten_path(folder), f"a folder that you may write to, whose {FILE} is a file"
        ) from None
    _held.add(key)
    released = threading.Event()
    threading.Thread(target=_renew, args=(contender, descriptor, released), name="leyden-lease", daemon=True).start()
    try:
        with nullcontext() if listens else StopFile(folder):
            yield
    finally:
        released.set()
        _held.discard(key)
        # closed first: on NFS an open file outlives its removal, and the folder could not be removed
        os.close(descriptor)
        _release(contender)


def refuse_running(folder: Path) -> None:
    """Refuse to start a run or sweep that is already running.

    Raises:
        ConfigError: another process on this host holds its lease.
    """
    other = lease_of(folder)
    if other is not None and other.is_local and other.pid != os.getpid() and is_alive(folder, other):
        raise _already_running(folder, other)


def _already_running(folder: Path, other: Lease) -> ConfigError:
    where = "this host" if other.is_local else other.host
    remedy = f"leyden stop {shorten_path(folder)}" if other.is_local else f"on {other.host}: leyden stop {folder}"
    return refuse("RUN", f"is already running: process {other.pid} on {where} leads it", shorten_path(folder), remedy)


def _take(contender: Contender) -> None:
    """
    Raises:
        ConfigError: another process leads.
        OSError: the file system does not allow it.
    """
    file, waited_for = contender.file, None
    while True:
        found = read_lease(file)
        if found is None:
            if contender.take_free():
                return
            continue
        other = found.lease
        if contender.is_abandoned(file, found) or other in _dead:
            if contender.take_over(found):
                if other is not None and not other.is_local:
                    _dead.add(other)
                return
            time.sleep(_RETRY_S)
            continue
        if other is not None and (other.is_local or waited_for not in (None, found)):
            raise _already_running(file.parent, other)
        if waited_for is None:
            _announce(contender, found)
        waited_for = found
        time.sleep(max(_RETRY_S, min(_POLL_S, contender.remaining_s(file, found))))


def _announce(contender: Contender, found: FoundLease) -> None:
    other, left = found.lease, contender.remaining_s(contender.file, found)
    leader = "its lease cannot be read" if other is None else f"process {other.pid} on {other.host} led it"
    text = f"{shorten_path(contender.file.parent)}: {leader}; taken over in {left:.0f} s unless that lease is renewed"
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which a stop signal ends the process orderly: handlers of a run would only note it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(130 if number == signal.SIGINT else 143)

    previous = install_handlers(leave)
    try:
        yield
    finally:
        restore_handlers(previous)


def _renew(contender: Contender, descriptor: int, released: threading.Event) -> None:
    while not released.wait(_RENEWAL_S):
        with suppress(OSError):
            os.utime(descriptor)
        with suppress(OSError):
            found = read_lease(contender.file)
            if found is not None and found.nonce != contender.lease.nonce and not released.is_set():
                _end_superseded(contender.file.parent, found)


def _end_superseded(folder: Path, found: FoundLease) -> None:
    """End this process at once: another leads the run, and two must not write into its folder."""
    other = found.lease
    leader = "another process" if other is None else f"process {other.pid} on {other.host}"
    text = f"{shorten_path(folder)}: {leader} has taken over the run, whose lease this process has not renewed in time"
    print(text, file=sys.stderr, flush=True)
    os._exit(1)


def _release(contender: Contender) -> None:
    with suppress(OSError):
        is_removed = read_lease(contender.file) is None
        contender.release()
        if is_removed:
            # with its folder, of a run that never started: on NFS that stays until the file is closed
            contender.file.parent.rmdir()
