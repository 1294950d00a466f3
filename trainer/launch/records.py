"""What the processes of an attempt tell their agent through files: where they are, and why they failed."""

import faulthandler
import json
import os
import shutil
import signal
import struct
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CannotStart, NotLogged, Refused
from ..pulse import Beat, pulse
from ..whole_file import whole_file

FAILURES = "LEYDEN_FAILURES"
"""Environment variable: the folder of the files."""
ASKS_FOR_STACKS = signal.SIGUSR1
"""Whoever listens answers with the stacks of its threads, even where it is stuck outside of Python."""


@dataclass(frozen=True)
class Record:
    """Why a process failed, in its own words."""

    time: float
    """Seconds since the epoch."""
    message: str
    users_mistake: bool
    traceback: str
    refused: bool = False
    """By the preflight."""
    problem: dict[str, Any] = field(default_factory=dict)
    """The user's mistake with its key, where that is known: fields of `errors.Problem`."""

    @classmethod
    def of(cls, error: Exception) -> "Record":
        """The record of the exception that is being handled."""
        mistake = isinstance(error, CannotStart)
        known = mistake or isinstance(error, NotLogged)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        found = error.problem if isinstance(error, CannotStart) else None
        problem = {} if found is None else {name: v for name, v in asdict(found).items() if v is not ...}
        trace = "" if isinstance(error, NotLogged) else traceback.format_exc()
        return cls(time.time(), message, mistake, trace, isinstance(error, Refused), problem)


class Records:
    """The folder of one attempt; a process's files bear its name, as `Role.name` has it."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="leyden-"))

    @classmethod
    def of_agent(cls) -> "Records":
        """The folder that the agent of this process reads."""
        return cls(Path(os.environ[FAILURES]))

    def listen(self, name: str) -> None:
        """Say that this process has taken its signals over."""
        (self.folder / f"{name}.pid").write_text(str(os.getpid()))

    def listens(self, name: str) -> bool:
        return (self.folder / f"{name}.pid").exists()

    def tell(self, name: str) -> None:
        """Publish this process's pulse, and have it answer for its stacks."""
        pulse.publish(self.folder / f"{name}.pulse")
        file = open(self.folder / f"{name}.stack", "w")  # noqa: SIM115  # as long as the process lives
        faulthandler.register(ASKS_FOR_STACKS, file, all_threads=True, chain=False)

    def beat(self, name: str) -> Beat | None:
        """What a process said last; None where it has not begun to say anything."""
        path = self.folder / f"{name}.pulse"
        try:
            return Beat.read(path.read_bytes())
        except (OSError, struct.error):
            return None

    def stack(self, name: str) -> str:
        """What a process has answered; "" where it has not."""
        path = self.folder / f"{name}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def fail(self, name: str, error: Exception) -> None:
        """Say why this process fails."""
        with whole_file(self.folder / f"{name}.json") as file:
            json.dump(asdict(Record.of(error)), file)

    def failure(self, name: str) -> Record | None:
        path = self.folder / f"{name}.json"
        return Record(**json.loads(path.read_text())) if path.exists() else None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
