"""Files through which the processes of a worker group report to their agent: heartbeats, stacks, errors."""

import faulthandler
import json
import os
import shutil
import signal
import struct
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..base.atomic_file import atomic_file
from ..base.errors import CannotStart, ConfigError, Explained, Refused
from ..base.failure_log import log_traceback
from ..base.heartbeat import HeartbeatReading, heartbeat
from ..base.storage import StorageError

ERROR_FILES = "LEYDEN_FAILURES"
"""Environment variable: the folder of the files."""
STACK_SIGNAL = signal.SIGUSR1
"""Signal that a ready process answers with the stacks of its threads, even where it is stuck outside of Python."""


@dataclass(frozen=True)
class ErrorRecord:
    """The exception that ended a process."""

    time: float
    """Seconds since the epoch."""
    message: str
    users_mistake: bool
    traceback: str
    """Traceback for the terminal."""
    refused: bool = False
    """Whether the preflight raised it."""
    problem: dict[str, Any] = field(default_factory=dict)
    """The user's mistake with its key, where that is known: fields of `errors.Problem`."""
    lasting: bool = False
    """Whether a restart would meet it again: a full disk, a folder that is gone."""

    @classmethod
    def of(cls, error: Exception) -> "ErrorRecord":
        """The record of an exception; its traceback goes to run.log."""
        if isinstance(error, ConfigError):  # of a config that has changed since the command read it
            error = CannotStart(error.problems[0])
        mistake = isinstance(error, CannotStart)
        known = mistake or isinstance(error, Explained)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        found = error.problem if isinstance(error, CannotStart) else None
        problem = {} if found is None else {name: v for name, v in asdict(found).items() if v is not ...}
        trace = "" if mistake else log_traceback(error)
        lasting = isinstance(error, StorageError) and error.lasting
        return cls(time.time(), message, mistake, trace, isinstance(error, Refused), problem, lasting)


class ErrorFiles:
    """Folder of one worker group. The files of a process have its `Role.name`.

    Files, not messages: they outlive the process, and the heartbeat is a memory map that a training step updates
    without a system call.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="leyden-"))

    @classmethod
    def of_agent(cls) -> "ErrorFiles":
        """The folder of this process's worker group."""
        return cls(Path(os.environ[ERROR_FILES]))

    def mark_ready(self, name: str) -> None:
        """Announce that this process has installed its signal handlers."""
        (self.folder / f"{name}.pid").write_text(str(os.getpid()))

    def is_ready(self, name: str) -> bool:
        return (self.folder / f"{name}.pid").exists()

    def publish_heartbeat(self, name: str) -> None:
        """Publish this process's heartbeat, and answer STACK_SIGNAL from now on."""
        heartbeat.publish(self.folder / f"{name}.heartbeat")
        file = open(self.folder / f"{name}.stack", "w")  # noqa: SIM115  # as long as the process lives
        faulthandler.register(STACK_SIGNAL, file, all_threads=True, chain=False)

    def read_heartbeat(self, name: str) -> HeartbeatReading | None:
        """The last heartbeat of a process; None where it has published none yet."""
        path = self.folder / f"{name}.heartbeat"
        try:
            return HeartbeatReading.read(path.read_bytes())
        except (OSError, struct.error):
            return None

    def read_stacks(self, name: str) -> str:
        """Stacks that a process has written; "" where it has not answered."""
        path = self.folder / f"{name}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def write_error(self, name: str, error: Exception) -> None:
        """Record the exception that ends this process."""
        with atomic_file(self.folder / f"{name}.json") as file:
            json.dump(asdict(ErrorRecord.of(error)), file)

    def read_error(self, name: str) -> ErrorRecord | None:
        path = self.folder / f"{name}.json"
        return ErrorRecord(**json.loads(path.read_text())) if path.exists() else None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
