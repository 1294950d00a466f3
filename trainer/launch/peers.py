"""The other nodes of a run, as an attempt on this one sees them."""

from collections.abc import Sequence
from typing import Protocol

from .hang import Standing


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

    def standing_still(self, here: Sequence[Standing] | None) -> Sequence[Standing] | None:
        """Tell them how the processes here stand, where no worker moves any more (None: one does).

        Returns:
            How the processes of all nodes stand, once, when nothing moves on any of them.
        """
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

    def standing_still(self, here: Sequence[Standing] | None) -> Sequence[Standing] | None:
        return here

    def say_failing(self) -> None:
        return

    def say_over(self) -> None:
        return
