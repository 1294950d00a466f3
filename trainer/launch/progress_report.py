"""Progress of a process, as agents report it to each other."""

from dataclasses import dataclass

from ..base.heartbeat import DATA, PHASES, SYNCHRONIZATION
from .roles import Role


@dataclass(frozen=True)
class ProgressReport:
    """Step and phase of a process, and how long it has been there."""

    role: Role
    host: str
    step: int
    phase: int
    stalled_s: float
    """Seconds since its last heartbeat."""
    status: str
    """psutil's name of the kernel's process state, such as psutil.STATUS_STOPPED; "" where it is unknown."""
    busy: bool = False
    """Whether it uses the CPU meanwhile, so that it may be slow, no more."""
    first_time: bool = False
    """Whether it is in this phase, of this occasion, for the first time."""

    @property
    def where(self) -> str:
        if self.role.kind == "server":
            return "at its server's work"
        in_step = DATA <= self.phase < SYNCHRONIZATION
        return f"in {PHASES[self.phase]}, " + (f"at step {self.step + 1}" if in_step else f"after step {self.step}")
