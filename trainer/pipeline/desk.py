"""A worker's line to the coordinator, held by a thread of its own: it trains meanwhile."""

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..launch.line import Line
from .carrier import Arrival, Carrier
from .parcel import Label

DONE, STOPPED, LOST = "done", "stopped", "lost"
"""Why it is over: all trials are, a signal has come, a worker or the coordinator is gone."""
_LOOK_S = 0.5


@dataclass(frozen=True)
class Order:
    """A visit that this worker is to make."""

    number: int
    trial: int
    """Number of the run folder in the pipeline's list."""
    epoch: int
    partitions: list[int]
    """Those that the model has come to in this epoch; the last is to be trained on."""
    arrival: Arrival | None
    """The model; None: it comes from a checkpoint or from its seed."""
    checkpoint: Path | None
    stop_reason: str | None
    """Why it ends early."""


class Desk:
    """What the coordinator wants of this worker, and what it is told.

    Args:
        address: HOST:PORT of the coordinator.
        told_to_end: is called when it is over before all is done.

    Raises:
        OSError: it is not there.
    """

    def __init__(self, address: str, carrier: Carrier, told_to_end: Callable[[], None]):
        host, _, port = address.rpartition(":")
        self._line = Line(socket.create_connection((host, int(port)), timeout=60))
        self._carrier = carrier
        self._orders: deque[Order] = deque()
        self._to_say: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._read, self._wake = os.pipe()
        self.end: dict[str, Any] | None = None
        """The last thing that the coordinator says: why it is over, and which parcels have to be saved; None: all."""
        self._told_to_end = told_to_end
        self.say(say="here", rank=carrier.rank)
        threading.Thread(target=self._run, name="leyden-desk", daemon=True).start()

    def say(self, **message: Any) -> None:
        """Tell the coordinator."""
        self._to_say.append(message)
        os.write(self._wake, b".")

    def order(self, seconds: float) -> Order | None:
        """The next visit; None where there is none yet after so many seconds, or there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self.end is not None, seconds)
            return self._orders.popleft() if self._orders and self.end is None else None

    def finish(self) -> None:
        """Have everything said before this process goes."""
        self.say(say="bye")
        with self._changed:
            self._changed.wait_for(lambda: not self._to_say or self._line.closed, 10)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._line.close()
            if self.end is None:
                self._obey({"say": "end", "why": LOST, "save": None})

    def _serve(self) -> None:
        while not self._line.closed:
            select.select([self._line, self._read], [], [], _LOOK_S)
            if select.select([self._read], [], [], 0)[0]:
                os.read(self._read, 4096)
            while self._to_say:
                self._line.say(**self._to_say[0])
                self._to_say.popleft()
            self._line.beat()
            for message in self._line.hear():
                self._obey(message)
            with self._changed:
                self._changed.notify_all()

    def _obey(self, message: dict[str, Any]) -> None:
        match message["say"]:
            case "visit":
                self._begin(message)
            case "give":
                self._carrier.give(message["parcel"], message["to"], message["visit"])
            case "keep":
                label = Label(**message["label"])
                kept = {"say": "kept", "trial": label.trial, "parcel": label.number}
                self._carrier.keep_copy(label, message["source"], message["visit"], lambda: self.say(**kept))
            case "forget":
                self._carrier.forget(message["parcel"])
            case "end":
                with self._changed:
                    self.end = message
                    self._changed.notify_all()
                if message["why"] != DONE:
                    self._told_to_end()

    def _begin(self, message: dict[str, Any]) -> None:
        label = Label(**message["label"]) if message["label"] else None
        arrival = None if label is None else self._carrier.take(label, message["source"], message["number"])
        checkpoint = Path(message["checkpoint"]) if message["checkpoint"] else None
        order = Order(
            message["number"], message["trial"], message["epoch"], message["partitions"], arrival, checkpoint,
            message["stop_reason"],
        )  # fmt: skip
        with self._changed:
            self._orders.append(order)
            self._changed.notify_all()
