"""Workers that come and go beside servers that stay: one that dies is started again, the others go on meanwhile."""

import sys
import time

from .attempt import Attempt, Job
from .blame import blamed
from .peers import Peers
from .processes import Exit, Process
from .roles import Place, Role, servers_here, workers_here
from .signals_heard import Signals
from .store import Store

_PAUSE_S = 1.0
"""Between the end of a worker and its next start."""


class ElasticAttempt(Attempt):
    """Fails where a server dies, where the first worker is gone for good, and where the start was the user's mistake.

    Whether any worker has reached the end is for all nodes together to see.

    Servers read in the store which workers there are: `leyden/worker/{k}/incarnation` is the newest that was started,
    `leyden/worker/{k}/gone` the newest that has ended without success.
    """

    def __init__(self, job: Job, number: int, place: Place, store: Store, peers: Peers, signals: Signals):
        super().__init__(job, number, place, store, peers, signals)
        self._due: dict[int, float] = {}
        """By the worker's number: when it is to be started again, by the monotonic clock."""
        self._told: set[Role] = set()

    def start(self) -> None:
        # first: servers read in it from their start
        self.store.open()
        for role in servers_here(self.job.config, self.place):
            self.servers.append(self.process(role))
        for role in workers_here(self.job.config, self.place):
            self.workers.append(self._incarnated(role))

    def _incarnated(self, role: Role) -> Process:
        self.store.set(f"leyden/worker/{role.number}/incarnation", str(role.incarnation))
        return self.process(role)

    def look(self) -> None:
        super().look()
        for worker in self.workers:
            if worker.exit is not None and worker.exit.code and worker.role not in self._told:
                self._gone(worker.exit)
                self._told.add(worker.role)
        if self.signals.told or self._succeeded():
            self._due.clear()
        for number in [number for number, when in self._due.items() if time.monotonic() >= when]:
            if not self.broken():
                self._start_again(number)

    def _gone(self, ended: Exit) -> None:
        """Tell the servers, and the user; arrange for another start where one is left."""
        number, incarnation = ended.role.number, ended.role.incarnation
        assert incarnation is not None
        if not self.broken():  # else the store may be gone, too
            self.store.set(f"leyden/worker/{number}/gone", str(incarnation))
        most = self.job.config.topology.max_restarts
        again = incarnation < most and not self.signals.told and not self.broken()
        if again:
            self._due[number] = time.monotonic() + _PAUSE_S
        if again or self.going_on() or not self.peers.over() or self._succeeded():
            alone = "it writes the checkpoints: nobody goes on" if number == 0 else "the run goes on without it"
            rest = f"restart {incarnation + 1} of {most}" if again else alone
            print(f"{blamed([ended])}; {rest}", file=sys.stderr, flush=True)

    def _start_again(self, number: int) -> None:
        del self._due[number]
        index = next(i for i, worker in enumerate(self.workers) if worker.role.number == number)
        before = self.workers[index].role.incarnation
        assert before is not None
        self.workers[index] = self._incarnated(Role("worker", number, before + 1))

    def going_on(self) -> bool:
        return self.working() or bool(self._due)

    def failed(self) -> bool:
        if self.peers.over() and not self.going_on():
            return False
        dead_server = any(server.exit is not None and server.exit.code for server in self.servers)
        return dead_server or self._first_is_lost() or any(_is_mistake(worker.exit) for worker in self.workers)

    def _first_is_lost(self) -> bool:
        """Whether the worker that writes the checkpoints is gone for good."""
        first = next((worker for worker in self.workers if worker.role.number == 0), None)
        if first is None or first.exit is None or not first.exit.code:
            return False
        return 0 not in self._due and first.role in self._told

    def _succeeded(self) -> bool:
        return any(worker.exit is not None and worker.exit.code == 0 for worker in self.workers)


def _is_mistake(ended: Exit | None) -> bool:
    """Whether the first start showed a mistake of the user's: it would show again."""
    if ended is None or ended.record is None:
        return False
    return ended.role.incarnation == 0 and ended.record.users_mistake
