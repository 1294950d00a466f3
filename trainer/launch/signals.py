"""Signals that ask a run to end, from any of its nodes."""

import signal
from types import FrameType
from typing import Any

from ..base.signals import install_handlers


class ReceivedSignals:
    """Signals of this agent's own (`local`), and those of the run as a whole (`received`).

    Ctrl-C in the terminals of several nodes at once is one request: only a repeated signal on one node is a second.
    """

    def __init__(self) -> None:
        self.local: list[signal.Signals] = []
        self.received: list[signal.Signals] = []
        self._taken = 0

    def install_handlers(self) -> dict[signal.Signals, Any]:
        """Install the handlers. Returns the old ones, for `restore_handlers`."""
        return install_handlers(self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.local.append(received)
        self.add(received, repeated=len(self.local) > 1)

    def add(self, received: signal.Signals, repeated: bool) -> None:
        """Record a signal for the run.

        Args:
            repeated: it is not the first on its node.
        """
        if repeated or not self.received:
            self.received.append(received)

    def take_local(self) -> list[tuple[signal.Signals, bool]]:
        """Signals of this agent's own since the last call, each with whether it is repeated."""
        start, self._taken = self._taken, len(self.local)
        return [(self.local[index], index > 0) for index in range(start, self._taken)]

    @property
    def force_kill(self) -> bool:
        """Whether processes are to be killed without a grace period: a second Ctrl-C."""
        return signal.SIGINT in self.received[1:]

    @property
    def exit_code(self) -> int:
        """Exit code of a run that had to end without a checkpoint."""
        return 130 if self.received and self.received[0] is signal.SIGINT else 143
