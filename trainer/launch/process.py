"""A child process of the agent."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..base.heartbeat import START, HeartbeatReading
from ..hardware.discovery.memory import oom_kills
from .child_process import ProcessSpec, spawn
from .error_files import STACK_SIGNAL, ErrorFiles, ErrorRecord
from .fork_server import ForkedProcess, ForkServer
from .roles import Role


@dataclass(frozen=True)
class ProcessExit:
    """Exit of a child process."""

    role: Role
    code: int
    """Exit code as `subprocess` has it: -9 after SIGKILL."""
    time: float
    """When the agent noticed, in seconds since the epoch."""
    killed_by_agent: bool
    error: ErrorRecord | None
    out_of_memory: bool = False
    """Whether the kernel has killed a process of the run for want of memory."""

    def shift_clock(self, seconds: float) -> "ProcessExit":
        """The same exit by a clock that is this many seconds ahead."""
        error = None if self.error is None else replace(self.error, time=self.error.time + seconds)
        return replace(self, time=self.time + seconds, error=error)


class Process:
    """A worker or server.

    Args:
        arguments: RUN_DIR, VERB, CHECKPOINT or "".
        environment: the whole of it.
        fork_server: None: it starts in an interpreter of its own.
    """

    def __init__(
        self,
        role: Role,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        error_files: ErrorFiles,
        fork_server: ForkServer | None,
    ):
        self.role = role
        self.exit: ProcessExit | None = None
        self._error_files = error_files
        self._signals_forwarded = 0
        self._killed = False
        self._failure: ErrorRecord | None = None
        self._oom_kills = oom_kills()
        module = f"leyden.trainer.entrypoints.{role.kind}"
        spec = ProcessSpec(module, arguments, environment, new_session=True)
        self._child = spawn(spec) if fork_server is None else fork_server.fork(spec)

    def poll(self) -> ProcessExit | None:
        """Exit of the process; None while it runs."""
        code = self._child.poll() if self.exit is None else None
        if code is not None:
            error = self._failure or self._error_files.read_error(self.role.name)
            out_of_memory = code == -signal.SIGKILL and oom_kills() > self._oom_kills
            self.exit = ProcessExit(self.role, code, time.time(), self._killed, error, out_of_memory)
        return self.exit

    def forward_signals(self, received: Sequence[signal.Signals]) -> None:
        """Send the signals that it has not got yet, once it is ready for them."""
        # before its handlers are installed a signal would kill it, and nothing would be saved
        if self.exit is None and self._signals_forwarded < len(received) and self._error_files.is_ready(self.role.name):
            for number in received[self._signals_forwarded :]:
                self._child.send_signal(number)
            self._signals_forwarded = len(received)

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            self._killed = True
            self._kill_process_group()

    def kill_as_failed(self, reason: str) -> None:
        """End it at once, as a process that has failed."""
        if self.poll() is None:
            self._failure = ErrorRecord(time.time(), reason, False, "")
            self._kill_process_group()

    def _kill_process_group(self) -> None:
        # with its children: a data loader's process that is stuck in a file system would not notice its parent's death
        if self.has_begun:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()

    def request_stacks(self) -> None:
        """Have it write down the stacks of its threads, if it is ready."""
        if self.exit is None and self._error_files.is_ready(self.role.name):
            self._child.send_signal(STACK_SIGNAL)

    def heartbeat(self) -> HeartbeatReading:
        """Last heartbeat of the process."""
        return self._error_files.read_heartbeat(self.role.name) or HeartbeatReading(0, 0, START)

    def stacks(self) -> str:
        """Stacks that the process has answered `request_stacks` with; "" without an answer."""
        return self._error_files.read_stacks(self.role.name)

    @property
    def has_begun(self) -> bool:
        """Whether it has a process id: a fork server forks it once it has imported."""
        return not isinstance(self._child, ForkedProcess) or self._child.has_begun

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self) -> ProcessExit:
        """Wait for the exit of the process, which must be near."""
        self._child.wait()
        process_exit = self.poll()
        assert process_exit is not None
        return process_exit


def inherited_environment(without: Sequence[str]) -> dict[str, str]:
    """This process's environment without some names."""
    return {name: value for name, value in os.environ.items() if name not in without}
