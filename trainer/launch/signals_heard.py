"""The signals that ask a run for its end, from whichever node they come."""

import signal
from types import FrameType
from typing import Any

from ..signals import take_over


class Signals:
    """What this agent was sent, and what the run as a whole has been told.

    Who presses Ctrl-C in several terminals at once asks one thing. Only a second one in the same place is a second.
    """

    def __init__(self) -> None:
        self.own: list[signal.Signals] = []
        self.told: list[signal.Signals] = []

    def take_over(self) -> dict[signal.Signals, Any]:
        """Listen from now on. Returns the old handlers, for `give_back`."""
        return take_over(self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.own.append(received)
        self.tell(received, again=len(self.own) > 1)

    def tell(self, received: signal.Signals, again: bool) -> None:
        """A signal for the run. `again`: it is not the first where it came from."""
        if again or not self.told:
            self.told.append(received)

    @property
    def hurried(self) -> bool:
        """Whether processes are to be killed at once."""
        return signal.SIGINT in self.told[1:]

    @property
    def exit_code(self) -> int:
        """Of a run that had to end without saving."""
        return 130 if self.told and self.told[0] is signal.SIGINT else 143
