"""A child process that runs one of Leyden's modules."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class ProcessSpec:
    """What a child process is to be. Its output, errors, working directory and umask are those of its parent."""

    module: str
    """Run as by `python -m`."""
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    """The whole of it."""
    new_session: bool
    """A session of its own, and no standard input; else only a process group. Ctrl-C reaches a terminal's whole
    foreground group: only the parent is to get it, and to forward it once."""


class Child(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


def spawn(spec: ProcessSpec) -> Child:
    """A child process in an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", spec.module, *spec.arguments],
        stdin=subprocess.DEVNULL if spec.new_session else None,
        env=spec.environment,
        start_new_session=spec.new_session,
        process_group=None if spec.new_session else 0,
    )


class ChildProcess:
    """A child process that `subprocess` has not started."""

    def __init__(self, pid: int):
        self._pid = pid
        self._code: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        """Exit code, -9 after SIGKILL; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait until it has ended. Returns the exit code."""
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        pid = self.pid
        if self._code is None:
            try:
                ended, status = os.waitpid(pid, options)
            except ChildProcessError:  # the handler of a signal that came meanwhile has asked, too
                if self._code is None:
                    raise
                return self._code
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
                self._reap_group()
        return self._code

    def _reap_group(self) -> None:
        """Reap what has ended of its process group: under a fork server's client, orphans are the client's children."""
        with suppress(ChildProcessError):
            while os.waitpid(-self._pid, os.WNOHANG)[0]:
                pass

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
