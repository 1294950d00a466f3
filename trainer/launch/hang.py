"""Runs in which nothing moves any more: who the others wait for, where, and since when."""

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import Config
from ..origin import shown
from ..pulse import DATA, MEETING, PHASES, PREPARATION, START, Beat
from .roles import Role

_START_S = 300.0
"""The least that a process gets for its start, however short trainer.hang_timeout is: torch may come from afar."""
_STACKS = "hang"


@dataclass(frozen=True)
class Standing:
    """Where a process stands."""

    role: Role
    host: str
    step: int
    phase: int
    still_s: float
    """For so long it has said nothing."""
    state: str
    """The kernel's letter: T stopped, D waiting for a device."""

    @property
    def where(self) -> str:
        if self.role.kind == "server":
            return "at its server's work"
        in_step = DATA <= self.phase < MEETING
        return f"in {PHASES[self.phase]}, " + (f"at step {self.step + 1}" if in_step else f"after step {self.step}")

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, data: dict[str, Any]) -> "Standing":
        return cls(**{**data, "role": Role(**data["role"])})


@dataclass(frozen=True)
class Hang:
    """A run in which nothing moves any more."""

    behind: Sequence[Role]
    """Whom the others wait for; several where none is further than the other."""
    text: str


class Stillness:
    """How long a process has said nothing, by the clock of one that looks every now and then.

    Args:
        every_s: from one look to the next. A look that comes late counts no more than twice that: the watcher itself
            was stopped, as by Ctrl-Z, and what it watches may have been, too.
    """

    def __init__(self, every_s: float):
        self.seconds = 0.0
        self._most = 2 * every_s
        self._number = -1

    def look(self, beat: Beat, since_last_look: float) -> float:
        if beat.number != self._number or beat.phase == PREPARATION:  # data may have to be fetched: no limit
            self._number, self.seconds = beat.number, 0.0
        else:
            self.seconds += min(since_last_look, self._most)
        return self.seconds


def look_every(timeout: float) -> float:
    """Seconds between two looks at processes that may be silent for `timeout`."""
    return min(1.0, timeout / 10)


def too_long(standing: Standing, timeout: float) -> bool:
    return standing.still_s >= (max(timeout, _START_S) if standing.phase == START else timeout)


def judged(standings: Sequence[Standing], config: Config, run_dir: Path) -> Hang:
    """Who is behind, of all processes of a run in which nothing moves any more."""
    stopped = [standing for standing in standings if standing.state in ("T", "t")]
    workers = [standing for standing in standings if standing.role.kind == "worker"]
    behind = stopped or _last(workers, by_own_clocks=config.servers > 0)
    timeout = config.trainer.hang_timeout
    stacks = f"the stacks of all processes are in {shown(run_dir / _STACKS)}"
    text = f"nothing has moved for {timeout:g} s (trainer.hang_timeout): {_sentence(behind)}; {stacks}"
    return Hang([standing.role for standing in behind], text)


def _last(workers: Sequence[Standing], by_own_clocks: bool) -> list[Standing]:
    """Those whom the others wait for; who waits in a meeting comes last of all."""

    def progress(standing: Standing) -> tuple[float, ...]:
        waits = standing.phase == MEETING
        # the steps of workers that go by their own clocks say nothing of who waits for whom
        return (waits, -standing.still_s) if by_own_clocks else (standing.step, standing.phase)

    least = min(progress(worker) for worker in workers)
    return [worker for worker in workers if progress(worker) == least]


def _sentence(behind: Sequence[Standing]) -> str:
    first = behind[0]
    if len(behind) > 1:
        names = ", ".join(f"{standing.role.title} on {standing.host}" for standing in behind)
        return f"nobody is behind another, {names} are {first.where}"
    how = {"T": "was stopped by a signal", "t": "is held by a debugger", "D": "waits for a disk or a file server"}
    return f"{first.role.title} on {first.host} {how.get(first.state, 'is behind')}, {first.where}"


def host() -> str:
    return socket.gethostname()


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does; "" where it is gone or the system has no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def keep_stack(run_dir: Path, standing: Standing, stack: str, at: str) -> None:
    """Append to the run's folder what a process was doing.

    Args:
        stack: of all its threads; "" where it did not answer.
        at: the time, for the heading.
    """
    folder = run_dir / _STACKS
    folder.mkdir(exist_ok=True)
    name = standing.role.title.replace(" ", "-")
    with open(folder / f"{name}.txt", "a") as file:
        heading = f"{at}: {standing.role.title} on {standing.host}, {standing.where}"
        file.write(f"{heading}, silent for {standing.still_s:.0f} s\n{stack or 'it did not answer'}\n\n")
