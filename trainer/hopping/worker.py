"""Worker of a hopping run: executes one sub-epoch after the other, of whichever model arrives."""

import gc
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time

import torch

from ..base.errors import CannotStart, Explained
from ..base.heartbeat import PREPARATION, SYNCHRONIZATION, heartbeat
from ..base.log import RUN_LOG, close_log, open_log
from ..base.paths import shorten_path
from ..base.signals import STATUS, StopRequest
from ..base.system_errors import system_errors
from ..config.faults import as_problem
from ..config.schema import Config, load
from ..core.callback_contract import CallbackContract
from ..core.checkpoints import checkpoint_io
from ..core.state import RunState
from ..data.contents.found import announce, count_samples, keep
from ..data.contents.identity import changes_since, other_content
from ..data.splits import Splits
from ..diagnostics.preflight.machines import check_machines
from ..engine.build import Shared
from ..engine.device_memory import memory_errors
from ..engine.kernels import hold_kernels
from ..runs.folder import storage_of
from ..runs.summary import mark_failed, read_summary
from .coordinator_client import CoordinatorClient, SubEpochOrder
from .log_forwarding import LogForwarder
from .messages import DONE, LOST, SnapshotLost, SubEpochCompleted, SubEpochFailed, SubEpochStarted, WorkerStopping
from .rendezvous import coordinator_address
from .snapshot import DamagedSnapshot, Snapshot, SnapshotMetadata, pack, save, short_of_memory
from .sub_epoch import prepare, train
from .transport import IncomingSnapshot, Transport

_POLL_S = 0.1


class LostPeer(Explained, RuntimeError):
    """Another worker, or the coordinator, was lost. By its message `launch.root_cause` knows that this is no cause."""


def work(config: Config, run_dir: Path, rank: int, stop_request: StopRequest) -> None:
    """Execute sub-epochs until the coordinator ends the run.

    Raises:
        CannotStart: with the message for the user.
        LostPeer: after the snapshots here have been saved.
    """
    try:
        check_machines(config, run_dir)
        worker = HoppingWorker(config, run_dir, rank, stop_request)
    except CannotStart:
        raise
    except (ValueError, OSError) as error:
        raise CannotStart(as_problem(str(error))) from error
    worker.run()


class HoppingWorker:
    """One device, its partitions of the data, and the model in training."""

    def __init__(self, config: Config, run_dir: Path, rank: int, stop_request: StopRequest):
        assert config.pipeline is not None
        self.rank = rank
        self.workers = config.topology.workers
        self.folders = config.pipeline.folders(run_dir)
        self.storage = storage_of(run_dir, in_pipeline=True)
        self.hops = config.pipeline.hops
        self.workers_here = config.topology.devices_per_node
        self.stop_request = stop_request
        self.device = config.topology.device
        self.configs: dict[int, Config] = {}
        self.log_forwarder = LogForwarder()
        heartbeat.at(PREPARATION, 0)
        self.shared = Shared(Splits.of(self._config(0).dataset), [self.log_forwarder])
        if rank == 0:
            self._announce_data()
        self.transport = Transport(rank, self.workers)
        self.loss = "Connection closed: another worker is lost"
        """Message of `LostPeer`."""
        self.newest: int | None = None
        """Snapshot of the last sub-epoch, which the coordinator may not know yet."""
        self.coordinator = CoordinatorClient(coordinator_address(), self.transport, self._stop_training)

    def _announce_data(self) -> None:
        """Log what was found in the data, and keep it in the folders of the trials that are not done.

        Raises:
            CannotStart: it is another content than that of their session before.
        """
        found = count_samples(self.shared.splits, self._config(0).dataset.val_fraction)
        folders = [folder for folder in self.folders if read_summary(folder).get("status") != "done"]
        for folder in folders:
            changed = changes_since(folder, found)
            if changed:
                raise CannotStart(other_content(folder, changed, "; of a pipeline each trial may accept it by itself"))
        announce(found)
        for folder in folders:
            keep(found, folder)

    def run(self) -> None:
        # what exists now stays: scanning it for garbage after every sub-epoch would cost a tenth of a second
        gc.freeze()
        reported = False
        while self.coordinator.end is None:
            heartbeat.at(SYNCHRONIZATION, 0)
            order = self.coordinator.order(_POLL_S)
            if order is not None:
                self._execute(order)
            elif self.stop_request.signal is not None and not reported:
                self._report_stopping()
                reported = True
        self._shut_down()

    def _report_stopping(self) -> None:
        assert self.stop_request.signal is not None
        self.coordinator.send(WorkerStopping(STATUS[self.stop_request.signal]))

    def _stop_training(self) -> None:
        """Have the loop save and leave the model in training, as on a signal."""
        if self.stop_request.signal is None:
            self.stop_request.signal = signal.SIGTERM

    def _execute(self, order: SubEpochOrder) -> None:
        if order.incoming is not None and not self._wait_for(order.incoming):
            return
        if self.stop_request.signal is not None:
            self._report_stopping()
            return
        trial = order.request.trial
        run_dir = self.folders[trial]
        open_log(run_dir, self.rank, self.workers, quiet=True)
        failed = True
        try:
            config = self._config(trial)
            with system_errors(self.storage), memory_errors(config), hold_kernels(config):
                self._train(order, config, run_dir)
            failed = False
        except Exception as error:
            self._report_failure(order, run_dir, error)
        finally:
            close_log()
            # a reference cycle would keep this model on the device, whose memory the next one needs
            gc.collect()
        if failed and torch.cuda.is_available():
            # only here: up to the end of its handler the error, and those that it was raised from, hold the model
            torch.cuda.empty_cache()

    def _wait_for(self, incoming: IncomingSnapshot) -> bool:
        """Wait for a model; False: the run has ended before, or the model is lost."""
        while not incoming.wait_for_arrival(_POLL_S):
            heartbeat.at(SYNCHRONIZATION, 0)
            if self.coordinator.end is not None:
                return False
        if incoming.error is None:
            return True
        self.loss = f"Connection closed: {incoming.error}"
        if isinstance(incoming.error, (DamagedSnapshot, OSError)):
            self.loss = str(incoming.error)
        self.coordinator.send(SnapshotLost())
        return False

    def _train(self, order: SubEpochOrder, config: Config, run_dir: Path) -> None:
        request = order.request
        began, clock = time(), perf_counter()
        content = None
        if order.incoming is not None:
            content = order.incoming.content()
        elif request.checkpoint is not None:
            content = checkpoint_io.read(request.checkpoint)
        state = prepare(config, run_dir, self.shared, self.stop_request, content, request.checkpoint)
        del content
        try:
            training_began = perf_counter()
            hop = order.incoming.seconds if order.incoming else 0.0
            self.coordinator.send(SubEpochStarted(request.number, hop))
            status = train(state, request.epoch, request.partitions, request.stop_reason)
        except Exception as error:
            state.call(CallbackContract.on_exception)
            state.hooks("on_exception", error)
            raise
        finally:
            state.data.close()
        training = perf_counter() - training_began
        snapshot = self._pack(state, request.trial, request.number, run_dir) if status == "left" else None
        self.coordinator.send(
            SubEpochCompleted(
                request.number, status, state.epoch, state.step, began, seconds=perf_counter() - clock,
                training=training, metrics=dict(state.metrics), snapshot=snapshot, log=self.log_forwarder.drain(),
            )
        )  # fmt: skip

    def _config(self, trial: int) -> Config:
        """Config of a trial, with this worker's device: a sweep may be resumed on another kind."""
        if trial not in self.configs:
            frozen = load(self.folders[trial])
            topology = frozen.topology.model_copy(update={"device": self.device})
            self.configs[trial] = frozen.model_copy(update={"topology": topology})
        return self.configs[trial]

    def _pack(self, state: RunState, trial: int, number: int, run_dir: Path) -> SnapshotMetadata:
        """Pack the model for its next sub-epoch, and store it here or in a file."""
        snapshot = pack(state, trial, number)
        if self._uses_file(snapshot):
            return replace(snapshot.metadata, file=str(save(snapshot, run_dir)))
        self.transport.store(snapshot)
        self.newest = snapshot.metadata.number
        return snapshot.metadata

    def _uses_file(self, snapshot: Snapshot) -> bool:
        if self.hops == "auto":
            return short_of_memory(snapshot.metadata.size, self.workers_here)
        return self.hops == "files"

    def _report_failure(self, order: SubEpochOrder, run_dir: Path, error: Exception) -> None:
        """Record the failure of the trial; the others continue."""
        known = isinstance(error, CannotStart | Explained)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        log_file = run_dir / RUN_LOG
        more = "" if isinstance(error, Explained) else f" (traceback: {shorten_path(log_file)})"
        with suppress(OSError), open(log_file, "a") as file:
            file.write(traceback.format_exc())
        print(f"trial {run_dir.name} failed: {message}{more}", file=sys.stderr, flush=True)
        mark_failed(run_dir, message, rank=0)
        self.coordinator.send(SubEpochFailed(order.request.number, self.log_forwarder.drain()))

    def _shut_down(self) -> None:
        """Save the snapshots that the coordinator names, and exit."""
        end = self.coordinator.end
        assert end is not None
        numbers = self.transport.numbers() if end.save is None else list(end.save)
        if self.newest is not None and end.reason != DONE and self.newest not in numbers:
            numbers.append(self.newest)
        for number in numbers:
            snapshot = self.transport.stored_snapshot(number)
            if snapshot is not None:
                save(snapshot, self.folders[snapshot.metadata.trial])
        self.coordinator.finish()
        if end.reason == LOST:
            raise LostPeer(f"{self.loss}; the models that were here are saved")
