"""An attempt at a pipeline: workers in lockstep with nobody, and a coordinator beside the first node's agent."""

from ..launch.attempt import Attempt, Ended
from ..launch.store import AgentStore
from .coordinator import Coordinator
from .meeting_place import publish
from .terminal import Terminal


class PipelineAttempt(Attempt):
    """As any other; the end of one worker is the end of all, who save what they have."""

    _coordinator: Coordinator | None = None
    _terminal: Terminal | None = None

    def start(self) -> None:
        leads = isinstance(self.store, AgentStore)
        # before there are workers: they write to it, too
        self._terminal = Terminal.taken() if leads else None
        super().start()
        if leads:
            again = self.job.verb == "resume"
            self._coordinator = Coordinator(self.job.config, self.job.run_dir, self.store.host, again, self._terminal)
            self._coordinator.start()
            publish(self.store, self.store.host, self._coordinator.port)

    def run(self) -> Ended:
        try:
            return super().run()
        finally:
            if self._coordinator is not None:
                self._coordinator.close()
            if self._terminal is not None:
                self._terminal.give_back()
