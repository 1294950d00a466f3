"""What a worker of a pipeline does: one visit after another, by whichever model comes."""

import gc
import signal
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter, time

import torch

from .. import checkpoint
from ..assemble import Shared
from ..config import Config, load
from ..data import Splits
from ..errors import CannotStart
from ..faults import stated
from ..log import close_log, open_log
from ..origin import shown
from ..preflight import check_machines
from ..pulse import MEETING, PREPARATION, pulse
from ..signals import STATUS, StopRequest
from ..state import RunState
from ..summary import mark_failed
from .carrier import Arrival, Carrier
from .desk import DONE, LOST, Desk, Order
from .meeting_place import coordinator_address
from .parcel import DamagedHop, Label, Parcel, pack, save, short_of_memory
from .relay import Relay
from .visit import Whereto, ready, train

_LOOK_S = 0.1


class LostPeer(RuntimeError):
    """Another worker, or the coordinator, is gone. Read by `launch.blame`."""


def work(config: Config, run_dir: Path, rank: int, stop_request: StopRequest) -> None:
    """Train what the coordinator sends, until it says that it is over.

    Raises:
        CannotStart: with the message for the user.
        LostPeer: what was here is saved.
    """
    try:
        check_machines(config, run_dir)
        worker = Worker(config, run_dir, rank, stop_request)
    except CannotStart:
        raise
    except (ValueError, OSError) as error:
        raise CannotStart(stated(str(error))) from error
    worker.run()


class Worker:
    """One device, the partitions that lie at it, and the model that trains."""

    def __init__(self, config: Config, run_dir: Path, rank: int, stop_request: StopRequest):
        assert config.pipeline is not None
        self.rank = rank
        self.workers = config.topology.workers
        self.folders = config.pipeline.folders(run_dir)
        self.hops = config.pipeline.hops
        self.workers_here = config.topology.devices_per_node
        self.stop_request = stop_request
        self.device = config.topology.device
        self.configs: dict[int, Config] = {}
        self.relay = Relay()
        pulse.at(PREPARATION, 0)
        self.shared = Shared(Splits.of(self._config(0).dataset), [self.relay])
        self.carrier = Carrier(rank, self.workers)
        self.lost = "Connection closed: another worker is gone"
        """Why this worker goes no further, should it be for want of another."""
        self.newest: int | None = None
        """The parcel that the last visit has made; the coordinator may not know of it yet."""
        self.desk = Desk(coordinator_address(), self.carrier, self._told_to_end)

    def run(self) -> None:
        # what is here stays: looking through it for garbage after every visit would cost a tenth of a second
        gc.freeze()
        said = False
        while self.desk.end is None:
            pulse.at(MEETING, 0)
            order = self.desk.order(_LOOK_S)
            if order is not None:
                self._make(order)
            elif self.stop_request.signal is not None and not said:
                self._say_stopping()
                said = True
        self._leave()

    def _say_stopping(self) -> None:
        assert self.stop_request.signal is not None
        self.desk.say(say="stopping", status=STATUS[self.stop_request.signal])

    def _told_to_end(self) -> None:
        """Have the model that trains be saved where it is."""
        if self.stop_request.signal is None:
            self.stop_request.signal = signal.SIGTERM

    def _make(self, order: Order) -> None:
        if order.arrival is not None and not self._arrived(order.arrival):
            return
        if self.stop_request.signal is not None:
            self._say_stopping()
            return
        run_dir = self.folders[order.trial]
        open_log(run_dir, self.rank, self.workers, quiet=True)
        try:
            self._train(order, self._config(order.trial), run_dir)
        except Exception as error:
            self._failed(order, run_dir, error)
        finally:
            close_log()
            # a cycle of references would keep a model on the device that the next one needs
            gc.collect()

    def _arrived(self, arrival: Arrival) -> bool:
        """Wait for a model; False where it is over before it comes."""
        while not arrival.here(_LOOK_S):
            pulse.at(MEETING, 0)
            if self.desk.end is not None:
                return False
        if arrival.error is None:
            return True
        self.lost = f"Connection closed: {arrival.error}"
        if isinstance(arrival.error, (DamagedHop, OSError)):
            self.lost = str(arrival.error)
        self.desk.say(say="lost")
        return False

    def _train(self, order: Order, config: Config, run_dir: Path) -> None:
        began, clock = time(), perf_counter()
        content = None
        if order.arrival is not None:
            content = order.arrival.content()
        elif order.checkpoint is not None:
            content = checkpoint.read(order.checkpoint)
        state = ready(config, run_dir, self.shared, self.stop_request, content, order.checkpoint)
        del content
        try:
            trained = perf_counter()
            self.desk.say(say="begun", number=order.number, hop=order.arrival.seconds if order.arrival else 0.0)
            status = train(state, Whereto(order.epoch, order.partitions, order.stop_reason))
        except Exception as error:
            state.call("on_exception")
            state.hooks("on_exception", error)
            raise
        training = perf_counter() - trained
        label = self._packed(state, order, run_dir) if status == "left" else None
        self.desk.say(
            say="visited", number=order.number, status=status, epoch=state.epoch, step=state.step, began=began,
            seconds=perf_counter() - clock, training=training, metrics=dict(state.metrics),
            label=asdict(label) if label else None, log=self.relay.taken(),
        )  # fmt: skip

    def _config(self, trial: int) -> Config:
        """The trial's, on this worker's device: a sweep may go on where there is another kind."""
        if trial not in self.configs:
            frozen = load(self.folders[trial])
            topology = frozen.topology.model_copy(update={"device": self.device})
            self.configs[trial] = frozen.model_copy(update={"topology": topology})
        return self.configs[trial]

    def _packed(self, state: RunState, order: Order, run_dir: Path) -> Label:
        """Have the model ready for its next visit. Returns what is known of it."""
        parcel = pack(state, order.trial, order.number)
        if self._through_a_file(parcel):
            return replace(parcel.label, file=str(save(parcel, run_dir)))
        self.carrier.keep(parcel)
        self.newest = parcel.label.number
        return parcel.label

    def _through_a_file(self, parcel: Parcel) -> bool:
        if self.hops == "auto":
            return short_of_memory(parcel.label.size, self.workers_here)
        return self.hops == "files"

    def _failed(self, order: Order, run_dir: Path, error: Exception) -> None:
        """The trial's end, and nobody else's."""
        message = str(error) if isinstance(error, CannotStart) else f"{type(error).__name__}: {error}"
        log_file = run_dir / "run.log"
        with open(log_file, "a") as file:
            file.write(traceback.format_exc())
        print(f"trial {run_dir.name} failed: {message} (traceback: {shown(log_file)})", file=sys.stderr, flush=True)
        mark_failed(run_dir, message, rank=0)
        self.desk.say(say="failed", number=order.number, error=message, log=self.relay.taken())
        error.__traceback__ = None  # its frames hold the model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _leave(self) -> None:
        assert self.desk.end is not None
        numbers = self.carrier.numbers() if self.desk.end["save"] is None else list(self.desk.end["save"])
        if self.newest is not None and self.desk.end["why"] != DONE and self.newest not in numbers:
            numbers.append(self.newest)
        for number in numbers:
            parcel = self.carrier.kept(number)
            if parcel is not None:
                save(parcel, self.folders[parcel.label.trial])
        self.desk.finish()
        if self.desk.end["why"] == LOST:
            raise LostPeer(f"{self.lost}; the models that were here are saved")
