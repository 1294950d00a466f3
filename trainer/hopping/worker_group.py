"""Worker group of a hopping run: independent workers, and the coordinator in the first node's agent."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from ..launch.store import AgentStore
from ..launch.worker_group import RunResult, WorkerGroup
from .rendezvous import SAVE_TIMEOUT_S, publish
from .terminal import Terminal

if TYPE_CHECKING:
    from .coordinator import Coordinator


class HoppingWorkerGroup(WorkerGroup):
    """Worker group in which the surviving workers of a failure get a grace period to save their models."""

    grace_s = SAVE_TIMEOUT_S
    _coordinator: "Coordinator | None" = None
    _import: threading.Thread | None = None
    _terminal: Terminal | None = None

    def start(self) -> None:
        leads = isinstance(self.store, AgentStore)
        if leads:
            self.grace_s = WorkerGroup.grace_s  # there is nothing to save before there is a coordinator
        # before the workers start, which inherit it
        self._terminal = Terminal.capture() if leads else None
        super().start()
        if leads:
            # in a thread: it takes seconds, in which the other nodes expect this agent's messages
            self._import = threading.Thread(target=_import_coordinator, name="leyden-import", daemon=True)
            self._import.start()

    def poll(self) -> None:
        super().poll()
        if self._import is not None and not self._import.is_alive() and not self._ending:
            self._import = None
            self._start_coordinator()
        if self._coordinator is not None and self.has_failed():
            self._coordinator.report_failure([exit.role.rank for exit in self.exits() if exit.role.kind == "worker"])

    def _start_coordinator(self) -> None:
        from .coordinator import Coordinator

        assert isinstance(self.store, AgentStore)
        job = self.job
        self._coordinator = Coordinator(job.config, job.run_dir, self.store.host, job.secret, self._terminal)
        self._coordinator.start()
        publish(self.store, self.store.host, self._coordinator.port)
        self.grace_s = SAVE_TIMEOUT_S

    def run(self) -> RunResult:
        try:
            result = super().run()
        finally:
            try:
                if self._coordinator is not None:
                    self._coordinator.close()
            finally:
                if self._terminal is not None:
                    self._terminal.release()
        failure = None if self._coordinator is None else self._coordinator.failure
        return result if failure is None else replace(result, failed=True, cause=failure)


def _import_coordinator() -> None:
    from . import coordinator  # noqa: F401
