"""Client of a fork server: of a process that has imported torch and Lightning, and forks others that begin with them.

An import costs each worker seconds, and thousands of reads of a file system that all nodes may share. Other than under
`multiprocessing`'s forkserver, a forked process becomes the child of the client, which waits for it, and with which it
ends, as any child does.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import wait
from typing import ClassVar

from ..base.log import log
from ..base.process import adopt_orphans
from .child_process import Child, ChildProcess, ProcessSpec, spawn

HAS_THREADS = 70
"""Exit code of a fork server that has threads: a fork would copy the locks that they hold, and not the threads."""
NUMBER = struct.Struct("!I")
NAME = "leyden-forks"
"""Name of a fork server's process."""
_OPENMP_PLACES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Environment variables by which OpenMP places threads on cores when it is loaded: before a worker has its own."""


class ForkServer:
    """A fork server of this process, with which it dies. While one is open, this process adopts orphans below it.

    Args:
        connection: to the server.
        process: the server.
        environment: in which it has imported the libraries; a forked process has its own after that.
    """

    _open = 0
    prepared: "ForkServer | None" = None
    """Started ahead of its use."""
    forked_this_process = False
    """Whether one has: torch is imported, and nothing has used it."""
    program: ClassVar[Sequence[str]] = ("-m", "leyden.trainer.entrypoints.fork_server")
    """Words after `python -P`."""

    def __init__(self, connection: socket.socket, process: Child, environment: Mapping[str, str]):
        self.environment = dict(environment)
        self._connection = connection
        self.process = process
        self._unanswered: list[ForkedProcess] = []
        adopt_orphans(True)
        ForkServer._open += 1

    @classmethod
    def start_server(cls, environment: Mapping[str, str]) -> "ForkServer":
        """A fork server in an interpreter of its own."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", *cls.program]
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                env=environment,
                process_group=0,
                pass_fds=[theirs.fileno()],
            )
        return cls(ours, process, environment)

    def fork(self, spec: ProcessSpec) -> "ForkedProcess":
        """A child process, forked by the server. Only its `pid` and `wait` wait for the server's imports."""
        with open(os.devnull, "rb") as nothing:
            return self.fork_with(spec, [nothing.fileno() if spec.new_session else 0, 1, 2], ".")

    def fork_with(self, spec: ProcessSpec, streams: Sequence[int], folder: str) -> "ForkedProcess":
        """Fork with other descriptors of standard input, output and errors, and another working directory."""
        process = ForkedProcess(self, spec)
        self._unanswered.append(process)
        umask = os.umask(0o077)
        os.umask(umask)
        message = json.dumps({**asdict(spec), "umask": umask}).encode()
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(ConnectionError):  # of a dead server, which its answer shows
                socket.send_fds(self._connection, [NUMBER.pack(len(message))], [*streams, directory])
                self._connection.sendall(message)
        finally:
            os.close(directory)
        return process

    def read_answers(self, waits: bool = True) -> None:
        """Take the answers of the server: all of which there will be, or those that are there."""
        while self._unanswered and (waits or wait([self._connection], 0)):
            answer = b""
            with suppress(ConnectionError):
                answer = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
            pid = NUMBER.unpack(answer)[0] if len(answer) == NUMBER.size else None
            self._unanswered.pop(0).begin(pid)

    def wait(self) -> int:
        """Exit code of the server, once it has ended."""
        return self.process.wait()

    def kill(self) -> None:
        """End the server at once. What it has yet to fork ends as by SIGKILL."""
        self.process.kill()

    def close(self) -> None:
        """End the server. What it has forked goes on."""
        if ForkServer.prepared is self:
            ForkServer.prepared = None
        self._connection.close()
        self.process.kill()
        self.process.wait()
        ForkServer._open -= 1
        adopt_orphans(ForkServer._open > 0)


class ForkedProcess(ChildProcess):
    """A child process that a fork server forks."""

    def __init__(self, server: ForkServer, spec: ProcessSpec):
        super().__init__(0)
        self._server = server
        self._spec = spec
        self._spawned: Child | None = None
        self._unwanted = False

    def begin(self, pid: int | None) -> None:
        """Take the server's answer: the process id, or None where the server has ended."""
        self._pid = pid or 0
        if pid is None and self._server.wait() == HAS_THREADS:
            log.warning("the workers import torch one by one: a library that it loads has started threads")
            self._spawned = spawn(self._spec)
            self._pid = self._spawned.pid
        elif pid is None:
            self._code = self._server.wait() or 1
        if self._unwanted:
            super().send_signal(signal.SIGKILL)

    @property
    def has_begun(self) -> bool:
        """Whether it has been forked."""
        return bool(self._pid)

    @property
    def pid(self) -> int:
        if not self._pid:
            self._server.read_answers()
        assert self._pid, "its fork server has ended"
        return self._pid

    def _wait(self, options: int) -> int | None:
        if not self._pid and self._code is None:
            self._server.read_answers(waits=not options)
        if self._spawned is not None:
            return self._spawned.poll() if options else self._spawned.wait()
        return super()._wait(options) if self._pid else self._code

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended. A process that is yet to be forked has nothing to save: any ends it."""
        # nothing is read here: `wait`, which a signal's handler has interrupted, would wait for another answer
        if self.has_begun:
            super().send_signal(sig)
        else:
            self._unwanted = True


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether forked processes compute as spawned ones do."""
    return not any(name in environment for name in _OPENMP_PLACES)
