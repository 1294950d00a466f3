"""The other nodes of a run, as seen by a worker group on this node."""

from collections.abc import Sequence
from typing import Protocol

from .progress_report import ProgressReport


class Peers(Protocol):
    """Agents of the other nodes."""

    def poll(self) -> None:
        """Handle messages that have arrived, send what is new on this node."""
        ...

    def failing(self) -> bool:
        """Whether their worker groups have failed, on any of them."""
        ...

    def workers_finished(self) -> bool:
        """Whether none of their workers runs any more."""
        ...

    def report_stall(self, local: Sequence[ProgressReport] | None) -> Sequence[ProgressReport] | None:
        """Report the processes of this node where none of its workers makes progress (None: one does).

        Returns:
            The reports of all nodes, once, when all of them have stalled.
        """
        ...

    def report_failing(self) -> None: ...

    def report_workers_finished(self) -> None: ...


class NoPeers:
    """Peers of an agent on the only node."""

    def poll(self) -> None:
        return

    def failing(self) -> bool:
        return False

    def workers_finished(self) -> bool:
        return True

    def report_stall(self, local: Sequence[ProgressReport] | None) -> Sequence[ProgressReport] | None:
        return local

    def report_failing(self) -> None:
        return

    def report_workers_finished(self) -> None:
        return
