"""Models on their way from worker to worker, while others train."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from ..servers.wire import open_store
from .parcel import Label, Parcel

_PATIENCE = timedelta(days=30)
"""The death of a peer is noticed at once; a living one may train for long before it takes what is sent."""


class Arrival:
    """A parcel that will be here.

    Args:
        get: has it arrive; raises what keeps it from doing so.
    """

    def __init__(self, get: Callable[[], Parcel]):
        self._get = get
        self._parcel: Parcel | None = None
        self._error: Exception | None = None
        self.seconds = 0.0
        """What it took."""
        self._thread = threading.Thread(target=self._run, name="leyden-hop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = perf_counter()
        try:
            self._parcel = self._get()
        except Exception as error:
            self._error = error
        self.seconds = perf_counter() - began

    def here(self, seconds: float) -> bool:
        """Whether it is, or will not come any more; waits so long at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def parcel(self) -> Parcel:
        """
        Raises:
            RuntimeError: its sender is gone.
            OSError: its file cannot be read.
        """
        if self._error is not None:
            raise self._error
        assert self._parcel is not None
        return self._parcel


class Carrier:
    """This worker's parcels, and the group of all workers that they are sent through.

    It is no default group: who trains here trains alone, and must not take the other workers for its peers.
    """

    def __init__(self, rank: int, workers: int):
        self.rank = rank
        self._kept: dict[int, Parcel] = {}
        self._lock = threading.Lock()
        self._group: Any = None
        if workers > 1:
            store = dist.PrefixStore(f"leyden/pipeline/{os.environ['TORCHELASTIC_RUN_ID']}", open_store())
            self._group = dist.ProcessGroupGloo(store, rank, workers, _PATIENCE)

    def keep(self, parcel: Parcel) -> None:
        with self._lock:
            self._kept[parcel.label.number] = parcel

    def kept(self, number: int) -> Parcel | None:
        with self._lock:
            return self._kept.get(number)

    def forget(self, number: int) -> None:
        with self._lock:
            self._kept.pop(number, None)

    def give(self, number: int, to: int, tag: int) -> None:
        """Send a parcel that is kept here, in the background. A receiver that dies meanwhile does not get it."""
        parcel = self.kept(number)
        assert parcel is not None

        def send() -> Parcel:
            # the bytes are only read
            self._group.send([torch.frombuffer(bytearray(parcel.data), dtype=torch.uint8)], to, tag).wait()
            return parcel

        Arrival(send)

    def take(self, label: Label, source: int, tag: int, then: Callable[[], None] = lambda: None) -> Arrival:
        """A parcel from the file system, from here, or from another worker.

        Args:
            then: is called when it has come from another worker, and is kept here.
        """
        if label.file is not None:
            file = Path(label.file)
            return Arrival(lambda: Parcel(label, file.read_bytes()))
        if source == self.rank:
            parcel = self.kept(label.number)
            assert parcel is not None
            return Arrival(lambda: parcel)

        def receive() -> Parcel:
            into = torch.empty(label.size, dtype=torch.uint8)
            self._group.recv([into], source, tag).wait()
            parcel = Parcel(label, into.numpy().tobytes())
            self.keep(parcel)
            then()
            return parcel

        return Arrival(receive)
