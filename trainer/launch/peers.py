"""The other nodes of a run, as an attempt on this one sees them."""

from typing import Protocol


class Peers(Protocol):
    """The agents on the other nodes."""

    def look(self) -> None:
        """Hear what they say, and tell them what is new here."""
        ...

    def failing(self) -> bool:
        """Whether the attempt has failed on one of them."""
        ...

    def over(self) -> bool:
        """Whether none of their workers runs any more."""
        ...

    def say_failing(self) -> None: ...

    def say_over(self) -> None: ...


class Nobody:
    """The peers of an agent that is alone."""

    def look(self) -> None:
        return

    def failing(self) -> bool:
        return False

    def over(self) -> bool:
        return True

    def say_failing(self) -> None:
        return

    def say_over(self) -> None:
        return
