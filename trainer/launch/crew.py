"""The agents of a run as the one that leads them uses them; alone, there is only the leader."""

from typing import Protocol

from .attempt import Ended, Job
from .peers import Nobody, Peers
from .roles import Place
from .store import AgentStore, Store


class Crew(Peers, Protocol):
    """The leader's hold on the others."""

    def begin(self, number: int, job: Job, why: str) -> tuple[Place, Store]:
        """Have everybody start an attempt. Returns which node this is, and where the processes meet.

        Args:
            number: attempts before this one.
            why: for the user: what ended the attempt before; "" for the first.
        """
        ...

    def gathered(self, ended: Ended) -> Ended:
        """How the attempt ended on all nodes, from how it ended here."""
        ...

    def conclude(self, code: int, text: str = "", mistake: bool = False) -> None:
        """Tell everybody how the run has ended."""
        ...


class Alone(Nobody):
    """The crew of one."""

    def begin(self, number: int, job: Job, why: str) -> tuple[Place, Store]:
        return Place(), AgentStore()

    def gathered(self, ended: Ended) -> Ended:
        return ended

    def conclude(self, code: int, text: str = "", mistake: bool = False) -> None:
        return
