"""An attempt at a pipeline: workers in lockstep with nobody, and a coordinator beside the first node's agent."""

import threading
from typing import TYPE_CHECKING

from ..launch.attempt import Attempt, Ended
from ..launch.store import AgentStore
from .meeting_place import LEAVE_S, publish
from .terminal import Terminal

if TYPE_CHECKING:
    from .coordinator import Coordinator


class PipelineAttempt(Attempt):
    """As any other; the end of one worker is the end of all, who save what they have."""

    grace_s = LEAVE_S
    _coordinator: "Coordinator | None" = None
    _import: threading.Thread | None = None
    _terminal: Terminal | None = None

    def start(self) -> None:
        leads = isinstance(self.store, AgentStore)
        if leads:
            self.grace_s = Attempt.grace_s  # nobody has anything to save before there is a coordinator
        # before there are workers: they write to it, too
        self._terminal = Terminal.taken() if leads else None
        super().start()
        if leads:
            # it takes seconds, in which the other nodes want to hear of this one, and the workers import the same
            self._import = threading.Thread(target=_import_coordinator, name="leyden-import", daemon=True)
            self._import.start()

    def look(self) -> None:
        super().look()
        if self._import is not None and not self._import.is_alive() and not self._ending:
            self._import = None
            self._begin()
        if self._coordinator is not None and self.broken():
            self._coordinator.broken([ended.role.rank for ended in self.exits() if ended.role.kind == "worker"])

    def _begin(self) -> None:
        from .coordinator import Coordinator

        assert isinstance(self.store, AgentStore)
        self._coordinator = Coordinator(self.job.config, self.job.run_dir, self.store.host, self._terminal)
        self._coordinator.start()
        publish(self.store, self.store.host, self._coordinator.port)
        self.grace_s = LEAVE_S

    def run(self) -> Ended:
        try:
            return super().run()
        finally:
            try:
                if self._coordinator is not None:
                    self._coordinator.close()
            finally:
                if self._terminal is not None:
                    self._terminal.give_back()


def _import_coordinator() -> None:
    from . import coordinator  # noqa: F401
