"""agent.json of a run or sweep that is going on: the process that leads it, and whether that process lives."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import refuse
from .origin import shown
from .run_folder import write_whole

FILE = "agent.json"
_BEAT_S = 15.0
"""So often the file is touched, for those who look from another host."""
_SILENCE_S = 120.0
"""On another host, a process that has not touched its file for so long is gone."""


@dataclass(frozen=True)
class Presence:
    """A process, such that no other can be taken for it."""

    host: str
    boot: str
    """Of the host: which start of the machine."""
    pid: int
    started: int
    """The kernel's clock ticks from the machine's start to the process's."""

    @classmethod
    def own(cls) -> "Presence":
        return cls(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()))

    @property
    def here(self) -> bool:
        """Whether it ran on this host."""
        return self.host == socket.gethostname()


def lead_of(folder: Path) -> Presence | None:
    """Who leads the run or sweep, or led it and was killed; None where nobody does."""
    try:
        return Presence(**json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def lives(folder: Path, lead: Presence) -> bool:
    """Whether the process is there: on this host for certain, on another one by what it lets be heard."""
    if lead.here:
        return lead.boot == _boot() and lead.started == _started(lead.pid)
    with suppress(OSError):
        return time.time() - (folder / FILE).stat().st_mtime < _SILENCE_S
    return False


@contextmanager
def leading(folder: Path) -> Iterator[None]:
    """This process leads the run or sweep for as long as the context lasts.

    Raises:
        ConfigError: another process of this host does.
    """
    refuse_led(folder)
    file = folder / FILE
    write_whole(file, json.dumps(asdict(Presence.own())) + "\n")
    over = threading.Event()
    threading.Thread(target=_beat, args=(file, over), name="leyden-presence", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        file.unlink(missing_ok=True)


def refuse_led(folder: Path) -> None:
    """
    Raises:
        ConfigError: another process of this host leads the run or sweep.
    """
    other = lead_of(folder)
    if other is not None and other.here and other.pid != os.getpid() and lives(folder, other):
        text = f"is going on already: process {other.pid} on this host leads it"
        raise refuse("RUN", text, shown(folder), f"leyden stop {shown(folder)}")


def _beat(file: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        with suppress(OSError):
            os.utime(file)


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(pid: int) -> int:
    """-1: there is no such process, or it has ended and was not waited for."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] == "Z" else int(fields[19])
    return -1
