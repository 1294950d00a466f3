"""One start of a run's processes on this node, monitored until all have ended."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..base.handshake import SECRET, new_secret
from ..config.job import JobSpec
from ..hardware.topology import device_kind
from .child import AGENT
from .error_files import ERROR_FILES, ErrorFiles
from .fork_server import ForkServer, can_fork
from .hangs.detector import HangDetector
from .hangs.diagnosis import stacks_folder
from .hangs.flight_recorder import recorder_environment, remove_empty_folder
from .peers import Peers
from .process import Process, ProcessExit, inherited_environment
from .roles import TORCHRUN, LocalNode, Role, environment_of, is_alone, local_servers, local_workers
from .signals import ReceivedSignals
from .store import Store

POLL_S = 0.05
_SERVER_GRACE_S = 10
"""Time for servers to leave after the last worker. Killed then, they lose nothing: it is the workers that save."""


@dataclass(frozen=True)
class WorkerSpec(JobSpec):
    """A job as its agents start it."""

    worker_group: "type[WorkerGroup]" = field(default_factory=lambda: WorkerGroup)
    secret: bytes = field(default_factory=new_secret, repr=False)
    """Secret by which its processes recognize each other."""


@dataclass(frozen=True)
class RunResult:
    """Result of a worker group, on one node or on all."""

    failed: bool
    exits: Sequence[ProcessExit]
    cause: str | None = None
    """Cause for the user if no process is it: the node whose agent was lost, an error of the coordinator."""


class WorkerGroup:
    """Workers in lockstep: all end with the first that fails.

    Attributes:
        grace_s: time for the others to end by themselves after a failure, before they are killed. They save nothing:
            sockets of a dead process are closed at once, and what follows is to record an error.

    Args:
        restart_count: worker groups of the run before this one.
        store: of the processes of all nodes.
        signals: forwarded to workers as they arrive.
    """

    grace_s = 4.0

    def __init__(
        self, job: WorkerSpec, restart_count: int, node: LocalNode, store: Store, peers: Peers, signals: ReceivedSignals
    ):
        self.job = job
        self.restart_count = restart_count
        self.node = node
        self.store = store
        self.peers = peers
        self.signals = signals
        self.error_files = ErrorFiles()
        self.workers: list[Process] = []
        self.servers: list[Process] = []
        self.hang_detector = HangDetector(job, peers, self.error_files.folder)
        self._ending = False
        self._fork_server: ForkServer | None = None

    def run(self) -> RunResult:
        """Start the processes and monitor them. None of them is left on this node afterwards."""
        try:
            self._fork_server = self._start_fork_server()
            self.start()
            self._monitor(lambda: self.has_failed() or not self.active())
            if not self.has_failed():
                self.peers.report_workers_finished()
                self._monitor(lambda: self.has_failed() or self.peers.workers_finished())
            failed = self.has_failed()
            self._ending = True
            if failed:
                self.peers.report_failing()
                self._monitor(lambda: not self.workers_running(), self.grace_s)
            else:
                self._monitor(lambda: all(server.exit for server in self.servers), _SERVER_GRACE_S)
        finally:
            exits = self._shut_down()
        return RunResult(failed, exits)

    def _start_fork_server(self) -> ForkServer | None:
        """A fork server; None where each process imports by itself."""
        if self.job.config.topology.start_method == "spawn" or not can_fork(os.environ):
            return None
        workers = local_workers(self.job.config, self.node)
        several = len(workers) + len(local_servers(self.job.config, self.node)) > 1
        if ForkServer.prepared is None and several:
            return ForkServer.start_server(self._environment(workers[0]))
        return ForkServer.prepared

    @property
    def _own_server(self) -> ForkServer | None:
        """The fork server that ends with this worker group."""
        return None if self._fork_server is ForkServer.prepared else self._fork_server

    def start(self) -> None:
        if self._communicates_by_nccl:
            with suppress(OSError):
                self._dumps.mkdir(exist_ok=True)  # torch does not make it
        for role in local_servers(self.job.config, self.node):
            self.servers.append(self.start_process(role))
        for role in local_workers(self.job.config, self.node):
            self.workers.append(self.start_process(role))
        # last: it imports torch, while the processes do the same
        if not is_alone(self.job.config):
            self.store.open()

    def has_failed(self) -> bool:
        """Whether the worker group has failed, on any node."""
        return self.has_failed_locally() or self.peers.failing()

    def has_failed_locally(self) -> bool:
        """Whether it has failed on this node. A server that dies after all workers have finished is no failure."""
        finished = self.peers.workers_finished() and all(
            worker.exit is not None and not worker.exit.code for worker in self.workers
        )
        return not finished and any(process_exit.code for process_exit in self.exits())

    def workers_running(self) -> bool:
        return any(worker.exit is None for worker in self.workers)

    def active(self) -> bool:
        """Whether a worker runs, or will be started again."""
        return self.workers_running()

    def start_process(self, role: Role) -> Process:
        return Process(role, self.job.to_argv(), self._environment(role), self.error_files, self._fork_server)

    def _environment(self, role: Role) -> dict[str, str]:
        defaults = environment_of(role, self.job.config, self.node)
        return {**defaults, **inherited_environment(without=TORCHRUN), **self._rendezvous(role)}

    def _rendezvous(self, role: Role) -> dict[str, str]:
        """Environment variables by which a process finds its agent and the store."""
        variables = {AGENT: str(os.getpid()), ERROR_FILES: str(self.error_files.folder)}
        if is_alone(self.job.config):
            return variables
        store = {"MASTER_ADDR": self.store.host, "MASTER_PORT": str(self.store.port)}
        variables |= {**store, SECRET: self.job.secret.hex()}
        if role.incarnation is not None:
            return variables
        run_id = f"{self.job.run_dir.name}-{self.store.port}-{self.restart_count}"
        torchrun = {"RUN_ID": run_id, "USE_AGENT_STORE": "True", "RESTART_COUNT": str(self.restart_count)}
        if self._communicates_by_nccl:
            variables |= recorder_environment(self._dumps, self.error_files.folder, os.environ)
        return {**variables, **{f"TORCHELASTIC_{name}": value for name, value in torchrun.items()}}

    @cached_property
    def _dumps(self) -> Path:
        """Folder of NCCL's last collectives."""
        return stacks_folder(self.job)

    @property
    def _communicates_by_nccl(self) -> bool:
        return device_kind(self.job.config.topology) == "cuda" and not is_alone(self.job.config)

    def _monitor(self, until: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Poll the processes until a condition holds, or the time is up."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.poll()
            if until() or (end is not None and time.monotonic() > end):
                return
            time.sleep(POLL_S)

    def poll(self) -> None:
        """Collect exits, forward signals, detect hangs."""
        self.peers.poll()
        for process in (*self.workers, *self.servers):
            process.poll()
        if self.signals.force_kill:
            self._kill_processes()
        for worker in self.workers:
            worker.forward_signals(self.signals.received)
        if not self._ending:
            self.hang_detector.poll([*self.workers, *self.servers])

    def exits(self) -> list[ProcessExit]:
        return [process.exit for process in (*self.workers, *self.servers) if process.exit is not None]

    def _kill_processes(self) -> None:
        for process in (*self.workers, *self.servers):
            process.kill()
        # else what it has yet to fork would end only after its imports
        if self._own_server is not None:
            self._own_server.kill()

    def _shut_down(self) -> list[ProcessExit]:
        self._kill_processes()
        for process in (*self.workers, *self.servers):
            process.wait()
        if self._own_server is not None:
            self._own_server.close()
        self.hang_detector.save_stacks([*self.workers, *self.servers])
        self.store.close()
        self.error_files.remove()
        if self._communicates_by_nccl:
            remove_empty_folder(self._dumps)
        return self.exits()
