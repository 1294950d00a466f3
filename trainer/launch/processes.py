"""A child process of the agent: started, told of signals, and what is known of its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..pulse import START, Beat
from .records import ASKS_FOR_STACKS, Record, Records
from .roles import Role


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    role: Role
    code: int
    """As `subprocess` has it: -9 after SIGKILL."""
    time: float
    """When the agent saw it, in seconds since the epoch."""
    ended_by_agent: bool
    record: Record | None


class Process:
    """A running child.

    Args:
        arguments: RUN_DIR, VERB, CHECKPOINT or "".
        environment: the whole of it.
    """

    def __init__(self, role: Role, arguments: Sequence[str], environment: Mapping[str, str], records: Records):
        self.role = role
        self.exit: Exit | None = None
        self._records = records
        self._signals_told = 0
        self._killed = False
        self._failure: Record | None = None
        self._child = subprocess.Popen(
            [sys.executable, "-m", f"leyden.trainer.launch.{role.kind}", *arguments],
            stdin=subprocess.DEVNULL,
            env=environment,
            # Ctrl-C reaches a terminal's whole process group: the agent alone is to hear it, and to pass it on once
            start_new_session=True,
        )

    def look(self) -> Exit | None:
        """Its end, where it has ended."""
        code = self._child.poll() if self.exit is None else None
        if code is not None:
            record = self._failure or self._records.failure(self.role.name)
            self.exit = Exit(self.role, code, time.time(), self._killed, record)
        return self.exit

    def tell(self, received: Sequence[signal.Signals]) -> None:
        """Pass on the signals that it has not heard of, if it listens by now."""
        if self.exit is None and self._signals_told < len(received) and self._records.listens(self.role.name):
            for number in received[self._signals_told :]:
                self._child.send_signal(number)
            self._signals_told = len(received)

    def kill(self) -> None:
        """End it at once."""
        if self.look() is None:
            self._killed = True
            self._kill_all()

    def fail(self, why: str) -> None:
        """End it at once, as one that has failed."""
        if self.look() is None:
            self._failure = Record(time.time(), why, False, "")
            self._kill_all()

    def _kill_all(self) -> None:
        """With what it has started: a reader that is stuck in a file system would not see its parent go."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()

    def ask_for_stack(self) -> None:
        """Have it write down what it is doing, if it listens by now."""
        if self.exit is None and self._records.listens(self.role.name):
            self._child.send_signal(ASKS_FOR_STACKS)

    def beat(self) -> Beat:
        """What it said last."""
        return self._records.beat(self.role.name) or Beat(0, 0, START)

    def stack(self) -> str:
        """Its answer to `ask_for_stack`; "" where there is none."""
        return self._records.stack(self.role.name)

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self) -> Exit:
        """Its end, which must be near."""
        self._child.wait()
        ended = self.look()
        assert ended is not None
        return ended


def inherited(without: Sequence[str]) -> dict[str, str]:
    """This process's environment without some names."""
    return {name: value for name, value in os.environ.items() if name not in without}
