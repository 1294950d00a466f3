"""One set of processes, from its start to its end."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from .child import AGENT
from .hang_watch import HangWatch
from .peers import Peers
from .processes import Exit, Process, inherited
from .records import FAILURES, Records
from .roles import TORCHRUN, Place, Role, environment_of, is_alone, servers_here, workers_here
from .signals_heard import Signals
from .store import Store

POLL_S = 0.05
_SERVERS_LEAVE_S = 10
"""What servers get when all workers are done; then they are killed, and nothing is lost."""


@dataclass(frozen=True)
class Job:
    """What the processes of an attempt are to do."""

    config: Config
    run_dir: Path
    verb: str
    checkpoint: Path | None

    @property
    def arguments(self) -> list[str]:
        return [str(self.run_dir), self.verb, str(self.checkpoint or "")]


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    failed: bool
    exits: Sequence[Exit]
    gone: str | None = None
    """A node whose agent vanished."""


class Attempt:
    """Workers in lockstep: the end of one that failed is the end of all.

    Attributes:
        grace_s: what the others get to end by themselves when one has died; then they are killed.

    Args:
        number: attempts before this one.
        store: where the processes of all nodes meet.
        signals: passed on to workers as they come in.
    """

    grace_s = 4.0

    def __init__(self, job: Job, number: int, place: Place, store: Store, peers: Peers, signals: Signals):
        self.job = job
        self.number = number
        self.place = place
        self.store = store
        self.peers = peers
        self.signals = signals
        self.records = Records()
        self.workers: list[Process] = []
        self.servers: list[Process] = []
        self.hangs = HangWatch(job.config, job.run_dir, peers)
        self._ending = False

    def run(self) -> Ended:
        """Start, watch, end. Nothing of it is left on this node afterwards."""
        try:
            self.start()
            self._watch(lambda: self.broken() or not self.going_on())
            if not self.broken():
                self.peers.say_over()
                self._watch(lambda: self.broken() or self.peers.over())
            failed = self.broken()
            self._ending = True
            if failed:
                self.peers.say_failing()
                self._watch(lambda: not self.working(), self.grace_s)
            else:
                self._watch(lambda: all(server.exit for server in self.servers), _SERVERS_LEAVE_S)
        finally:
            exits = self._end()
        return Ended(failed, exits)

    def start(self) -> None:
        for role in servers_here(self.job.config, self.place):
            self.servers.append(self.process(role))
        for role in workers_here(self.job.config, self.place):
            self.workers.append(self.process(role))
        # only now: it imports torch, and the processes are doing so meanwhile
        if not is_alone(self.job.config):
            self.store.open()

    def broken(self) -> bool:
        """Whether the attempt has failed, here or elsewhere."""
        return self.failed() or self.peers.failing()

    def failed(self) -> bool:
        """Whether it has failed here: not by a server that dies when all workers have come to their end."""
        done = self.peers.over() and all(worker.exit is not None and not worker.exit.code for worker in self.workers)
        return not done and any(ended.code for ended in self.exits())

    def working(self) -> bool:
        return any(worker.exit is None for worker in self.workers)

    def going_on(self) -> bool:
        """Whether a worker runs, or will run again."""
        return self.working()

    def process(self, role: Role) -> Process:
        """Start a process of this attempt."""
        own = environment_of(role, self.job.config, self.place)
        environment = {**own, **inherited(without=TORCHRUN), **self._shared(role)}
        return Process(role, self.job.arguments, environment, self.records)

    def _shared(self, role: Role) -> dict[str, str]:
        shared = {AGENT: str(os.getpid()), FAILURES: str(self.records.folder)}
        if is_alone(self.job.config):
            return shared
        shared |= {"MASTER_ADDR": self.store.host, "MASTER_PORT": str(self.store.port)}
        if role.incarnation is not None:
            return shared
        run_id = f"{self.job.run_dir.name}-{self.store.port}-{self.number}"
        torchrun = {"RUN_ID": run_id, "USE_AGENT_STORE": "True", "RESTART_COUNT": str(self.number)}
        return {**shared, **{f"TORCHELASTIC_{name}": value for name, value in torchrun.items()}}

    def _watch(self, happened: Callable[[], bool], seconds: float | None = None) -> None:
        """Look after the processes until something has happened, or time is up."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            self.look()
            if happened() or (end is not None and time.monotonic() > end):
                return
            time.sleep(POLL_S)

    def look(self) -> None:
        """See who has ended, pass signals on."""
        self.peers.look()
        for process in (*self.workers, *self.servers):
            process.look()
        if self.signals.hurried:
            for process in (*self.workers, *self.servers):
                process.kill()
        for worker in self.workers:
            worker.tell(self.signals.told)
        if not self._ending:
            self.hangs.look([*self.workers, *self.servers])

    def exits(self) -> list[Exit]:
        return [process.exit for process in (*self.workers, *self.servers) if process.exit is not None]

    def _end(self) -> list[Exit]:
        for process in (*self.workers, *self.servers):
            process.kill()
        for process in (*self.workers, *self.servers):
            process.wait()
        self.hangs.keep([*self.workers, *self.servers])
        self.store.close()
        self.records.remove()
        return self.exits()
