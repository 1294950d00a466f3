"""Taking turns: what the loop asks where workers go by their own clocks."""

from collections.abc import Iterator
from typing import Protocol

from ..servers.tickets import Meeting


class Turns(Protocol):
    """The loop trains from one meeting of all workers to the next."""

    reads_ahead: bool
    """Whether tickets may be drawn before the ones before are trained."""

    def begin(self, epoch: int, first_round: int, end_round: int, step: int) -> None:
        """All workers go on from here."""
        ...

    def numbers(self) -> Iterator[int]:
        """This process's tickets until the next meeting: number n is slice n % workers of round n // workers."""
        ...

    def trained(self) -> None:
        """One more of this process's tickets is trained."""
        ...

    def ask(self, meeting: Meeting) -> None:
        """Have everybody meet soon."""
        ...

    def meet(self) -> Meeting | None:
        """All tickets of this process are trained. Returns, when everybody is there, why; None: there are more."""
        ...

    def round(self) -> int:
        """At a meeting: rounds of the epoch that are trained."""
        ...
