"""The agents of a run as seen by the one that leads them; on a single node, the leader alone."""

from typing import Protocol

from .peers import NoPeers, Peers
from .roles import LocalNode
from .store import AgentStore, Store
from .worker_group import RunResult, WorkerSpec


class AgentGroup(Peers, Protocol):
    """The leader's control over the other agents."""

    def start_workers(self, restart_count: int, job: WorkerSpec, reason: str) -> tuple[LocalNode, Store]:
        """Have all nodes start their worker groups. Returns this node and the store of the new worker groups.

        Args:
            reason: for the user: why the previous worker group ended; "" for the first.
        """
        ...

    def gather_result(self, local: RunResult) -> RunResult:
        """Wait for the results of all nodes. Returns their combination with this node's."""
        ...

    def end_run(self, code: int, text: str = "", users_mistake: bool = False) -> None:
        """Send the run's exit code, and a text for the user, to all nodes."""
        ...


class SingleNode(NoPeers):
    """The agent group of a run on one node."""

    def start_workers(self, restart_count: int, job: WorkerSpec, reason: str) -> tuple[LocalNode, Store]:
        return LocalNode(), AgentStore()

    def gather_result(self, local: RunResult) -> RunResult:
        return local

    def end_run(self, code: int, text: str = "", users_mistake: bool = False) -> None:
        return
