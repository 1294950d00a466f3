"""Elastic workers next to permanent servers: a worker that fails is restarted while the others go on."""

import sys
import time

from .peers import Peers
from .process import Process, ProcessExit
from .roles import LocalNode, Role, local_servers, local_workers
from .root_cause import root_cause
from .signals import ReceivedSignals
from .store import Store
from .worker_group import WorkerGroup, WorkerSpec

_RESTART_DELAY_S = 1.0
"""Delay from a worker's failure to its restart."""


class ElasticWorkerGroup(WorkerGroup):
    """Fails where a server dies, where worker 0 is lost for good, and where the first start shows a user's mistake.

    Whether any worker has reached the end is decided from the results of all nodes.

    Servers read in the store which workers exist: `leyden/worker/{k}/incarnation` is the newest that was started,
    `leyden/worker/{k}/failed` the newest that has failed.
    """

    def __init__(
        self, job: WorkerSpec, restart_count: int, node: LocalNode, store: Store, peers: Peers, signals: ReceivedSignals
    ):
        super().__init__(job, restart_count, node, store, peers, signals)
        self._restart_at: dict[int, float] = {}
        """Times at which workers are to be restarted, by their numbers and the monotonic clock."""
        self._reported: set[Role] = set()
        """Failed incarnations that servers and user have been informed of."""

    def start(self) -> None:
        # first: servers read it from their start
        self.store.open()
        for role in local_servers(self.job.config, self.node):
            self.servers.append(self.start_process(role))
        for role in local_workers(self.job.config, self.node):
            self.workers.append(self._start_incarnation(role))

    def _start_incarnation(self, role: Role) -> Process:
        self.store.set(f"leyden/worker/{role.number}/incarnation", str(role.incarnation))
        return self.start_process(role)

    def poll(self) -> None:
        super().poll()
        for worker in self.workers:
            if worker.exit is not None and worker.exit.code and worker.role not in self._reported:
                self._handle_failure(worker.exit)
                self._reported.add(worker.role)
        if self.signals.received or self._has_succeeded():
            self._restart_at.clear()
        for number in [number for number, when in self._restart_at.items() if time.monotonic() >= when]:
            if not self.has_failed():
                self._restart(number)

    def _handle_failure(self, failure: ProcessExit) -> None:
        """Inform the servers and the user; schedule a restart where one is left."""
        number, incarnation = failure.role.number, failure.role.incarnation
        assert incarnation is not None
        if not self.has_failed():  # else the store may be lost, too
            self.store.set(f"leyden/worker/{number}/failed", str(incarnation))
        max_restarts = self.job.config.topology.max_restarts
        lasting = failure.error is not None and failure.error.lasting
        restarts = incarnation < max_restarts and not lasting and not self.signals.received and not self.has_failed()
        if restarts:
            self._restart_at[number] = time.monotonic() + _RESTART_DELAY_S
        if restarts or self.active() or not self.peers.workers_finished() or self._has_succeeded():
            lost = "it writes the checkpoints: the run ends" if number == 0 else "the run goes on without it"
            outcome = f"restart {incarnation + 1} of {max_restarts}" if restarts else lost
            print(f"{root_cause([failure])}; {outcome}", file=sys.stderr, flush=True)

    def _restart(self, number: int) -> None:
        del self._restart_at[number]
        index = next(i for i, worker in enumerate(self.workers) if worker.role.number == number)
        previous = self.workers[index].role.incarnation
        assert previous is not None
        self.workers[index] = self._start_incarnation(Role("worker", number, previous + 1))

    def active(self) -> bool:
        return self.workers_running() or bool(self._restart_at)

    def has_failed_locally(self) -> bool:
        if self.peers.workers_finished() and not self.active():
            return False
        dead_server = any(server.exit is not None and server.exit.code for server in self.servers)
        return dead_server or self._worker_0_lost() or any(_is_mistake(worker.exit) for worker in self.workers)

    def _worker_0_lost(self) -> bool:
        """Whether the worker that writes the checkpoints has failed without a restart left."""
        first = next((worker for worker in self.workers if worker.role.number == 0), None)
        if first is None or first.exit is None or not first.exit.code:
            return False
        return 0 not in self._restart_at and first.role in self._reported

    def _has_succeeded(self) -> bool:
        return any(worker.exit is not None and worker.exit.code == 0 for worker in self.workers)


def _is_mistake(process_exit: ProcessExit | None) -> bool:
    """Whether the first start showed a user's mistake: a restart would show it again."""
    if process_exit is None or process_exit.error is None:
        return False
    return process_exit.role.incarnation == 0 and process_exit.error.users_mistake
