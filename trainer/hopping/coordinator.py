"""Coordinator of a hopping run: a thread of the first node's agent to which all workers are connected."""

import sys
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path

from ..base.errors import Explained
from ..base.system_errors import system_errors
from ..config.schema import Config, load
from ..launch.authentication import AuthenticatedListener
from ..launch.channel import MessageChannel
from ..launch.store import listening_socket
from ..runs.checkpoints import saved_checkpoints, step_of
from ..runs.folder import storage_of
from ..runs.lease import hold_lease
from ..runs.summary import read_summary, write_summary
from .dispatcher import Dispatcher
from .messages import (
    DONE,
    FROM_WORKER,
    LOST,
    STOPPED,
    EndReason,
    EndWorkers,
    SnapshotCopied,
    SnapshotLost,
    SubEpochCompleted,
    SubEpochFailed,
    SubEpochStarted,
    WorkerLeaving,
    WorkerMessage,
    WorkerReady,
    WorkerStopping,
)
from .rendezvous import PROTOCOL, SAVE_TIMEOUT_S
from .terminal import Terminal
from .trials import HoppingTrial
from .worker_handle import WorkerHandle

_POLL_S = 0.05

Channel = MessageChannel[WorkerMessage]


class Coordinator:
    """Runs the trials of a hopping run to the end of each.

    One coordinator decides for all workers: a schedule needs the state of every model, and the loss of its node ends
    the run in any case, since that node serves the store.

    Args:
        run_dir: the hopping run's own folder.
        host: the address to listen on.
        secret: of the run; workers have it from their agents.
        terminal: for the live table, if there is one.
    """

    def __init__(self, config: Config, run_dir: Path, host: str, secret: bytes, terminal: Terminal | None = None):
        assert config.pipeline is not None
        self._settings = config.pipeline
        self._run_dir = run_dir
        self._workers = config.topology.workers
        self._listener = AuthenticatedListener(listening_socket(host), secret, PROTOCOL)
        self._terminal = terminal
        self._connecting: list[Channel] = []
        """Connections that have not sent `WorkerReady`."""
        self._handles: dict[int, WorkerHandle] = {}
        self._trials: dict[int, HoppingTrial] = {}
        self._epochs: list[int] = []
        """Epochs of every trial, including those already done."""
        self._ended: EndReason | None = None
        self._status = "failed"
        self._closed, self._group_failed = threading.Event(), threading.Event()
        self._dead: set[int] = set()
        """Workers of this node that have ended."""
        self._leases = ExitStack()
        self.failure: str | None = None
        """The error that has ended it, for the user."""
        self._thread = threading.Thread(target=self._run, name="leyden-coordinator", daemon=True)

    @property
    def port(self) -> int:
        return self._listener.port

    def start(self) -> None:
        """
        Raises:
            ConfigError: another process leads one of the trials.
        """
        folders = self._settings.folders(self._run_dir)
        every = [HoppingTrial(number, folder, load(folder)) for number, folder in enumerate(folders)]
        self._epochs = [trial.config.trainer.max_epochs for trial in every]
        self._trials = {trial.number: trial for trial in every if not trial.done}
        for trial in self._trials.values():
            self._leases.enter_context(hold_lease(trial.folder))
        self._thread.start()

    def report_failure(self, dead: Collection[int]) -> None:
        """The worker group has failed.

        The connection of a dead worker may outlive it in processes that it had started (loaders), and that of a dead
        host is not closed at all: so the agent reports both.

        Args:
            dead: workers of this node that have ended.
        """
        self._dead.update(dead)
        self._group_failed.set()

    def close(self) -> None:
        """Join the thread; all workers have ended."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._leases.close()

    def _run(self) -> None:
        try:
            with system_errors(storage_of(self._run_dir, in_pipeline=True)):
                self._coordinate()
        except Explained as error:
            self.failure = str(error)
        except Exception as error:
            traceback.print_exc()
            self.failure = f"the coordinator failed: {type(error).__name__}: {error}"
        finally:
            for channel in (*self._connecting, *(handle.channel for handle in self._handles.values())):
                channel.close()
            self._listener.close()

    def _coordinate(self) -> None:
        self._dispatcher = self._make_dispatcher()
        self._accept_workers()
        while not self._is_finished():
            if self._ended is None:
                self._dispatcher.assign()
            self._poll_workers()
            self._dispatcher.table.refresh()
        self._finish()

    def _make_dispatcher(self) -> Dispatcher:
        # imported now, while the workers start: in the first sub-epochs its seconds would delay them
        import torch.utils.tensorboard  # noqa: F401

        dispatcher = Dispatcher(
            self._settings, self._run_dir, self._trials, self._epochs, self._handles, self._workers, self._terminal
        )
        write_summary(self._run_dir, {**read_summary(self._run_dir), "status": "running"})
        return dispatcher

    def _accept_workers(self) -> None:
        """Wait until all workers have connected, or the run has failed."""
        while len(self._handles) < self._workers and not (self._group_failed.is_set() or self._closed.is_set()):
            self._listener.wait([channel.fileno() for channel in self._connecting], _POLL_S)
            for connection in self._listener.accept():
                self._connecting.append(MessageChannel(connection, FROM_WORKER))
            for channel in list(self._connecting):
                self._register(channel)
            self._dispatcher.table.refresh()
        self._listener.close()

    def _register(self, channel: Channel) -> None:
        """Make a connection the channel of a worker, or close it if another program has connected."""
        messages = channel.receive()
        if messages:
            self._connecting.remove(channel)
            match messages[0]:
                case WorkerReady(rank) if rank in range(self._workers) and rank not in self._handles:
                    self._handles[rank] = WorkerHandle(rank, channel)
                    for message in messages[1:]:
                        self._handle(self._handles[rank], message)
                case unexpected:
                    channel.close()
                    _report_closed("a connection", f"unexpected first message {unexpected!r}")
        elif channel.closed:
            self._connecting.remove(channel)
            _report_closed("a connection", channel.error)

    def _is_finished(self) -> bool:
        if self._ended is None:
            lost = any(handle.lost for handle in self._handles.values())
            if self._group_failed.is_set() or self._closed.is_set() or lost:
                self._end(LOST)
            elif self._dispatcher.finished:
                self._status = "done"
                self._end(DONE)
        return self._ended is not None and (
            all(handle.left or handle.channel.closed for handle in self._handles.values())
            or time.monotonic() > self._deadline
        )

    def _poll_workers(self) -> None:
        channels = [handle.channel for handle in self._handles.values() if not handle.channel.closed]
        wait([channel.fileno() for channel in channels], _POLL_S)
        for handle in self._handles.values():
            if handle.channel.closed:
                continue
            handle.channel.keep_alive()
            for message in handle.channel.receive():
                self._handle(handle, message)
            if handle.channel.error:
                _report_closed(f"the connection of worker {handle.rank}", handle.channel.error)

    def _handle(self, handle: WorkerHandle, message: WorkerMessage) -> None:
        match message:
            case SubEpochStarted() | SnapshotCopied() if self._ended is not None:
                pass  # either may drop an older snapshot, which a worker has been asked to save
            case SubEpochStarted():
                self._dispatcher.started(handle, message)
            case SnapshotCopied():
                self._dispatcher.copied(handle, message)
            case SubEpochCompleted():
                self._dispatcher.completed(handle, message)
                if message.status not in ("left", "done"):
                    self._stop(message.status)
            case SubEpochFailed():
                self._dispatcher.failed(handle, message)
            case WorkerStopping():
                self._stop(message.status)
            case SnapshotLost():
                self._end(LOST)
            case WorkerLeaving():
                handle.left = True
            case WorkerReady():
                pass  # it is known

    def _stop(self, status: str) -> None:
        """End the run on a signal."""
        if self._ended is None:
            self._status = status
        self._end(STOPPED)

    def _end(self, reason: EndReason) -> None:
        """Notify all workers, once, of the end and of the snapshots that each has to save."""
        if self._ended is not None:
            return
        self._ended = reason
        self._deadline = time.monotonic() + SAVE_TIMEOUT_S
        for rank in self._dead & set(self._handles):
            self._handles[rank].channel.close()
        alive = {rank for rank, handle in self._handles.items() if not handle.channel.closed}
        save = self._dispatcher.snapshots_to_save(alive)
        for rank in alive:
            self._handles[rank].channel.send(EndWorkers(reason, save[rank]))

    def _finish(self) -> None:
        self._dispatcher.table.close()
        if self._ended == STOPPED:
            for trial in self._trials.values():
                if not trial.finished:
                    steps = max(map(step_of, saved_checkpoints(trial.folder)), default=0)
                    ended = {"status": self._status, "steps": steps}
                    write_summary(trial.folder, {**read_summary(trial.folder), **ended})
        timeline = self._dispatcher.timeline
        summary = {**read_summary(self._run_dir), **timeline.summary()}
        if self._ended != LOST:
            summary["status"] = self._status
        write_summary(self._run_dir, summary)
        timeline.draw()
        if self._ended == DONE:
            print(timeline.text(), flush=True)


def _report_closed(peer: str, error: str) -> None:
    """Report a connection closed for what it sent; a plain disconnect is not reported."""
    if error:
        print(f"pipeline: {peer} to the coordinator was closed: {error}", file=sys.stderr, flush=True)
