"""Models on their way from worker to worker, while others train."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from ..servers.wire import open_store
from .parcel import Label, Parcel

_PATIENCE = timedelta(days=30)
"""The death of a peer is noticed at once; a living one may train for long before it takes what is sent."""


class Arrival:
    """A model that will be here.

    Args:
        get: has it arrive, and reads it; raises what keeps it from doing so.
    """

    def __init__(self, get: Callable[[], dict[str, Any]]):
        self._get = get
        self._content: dict[str, Any] | None = None
        self.error: Exception | None = None
        """Why it does not come any more: its sender is gone, it was damaged, its file cannot be read."""
        self.seconds = 0.0
        """What it took."""
        self._thread = threading.Thread(target=self._run, name="leyden-hop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = perf_counter()
        try:
            self._content = self._get()
        except Exception as error:
            self.error = error
        self.seconds = perf_counter() - began

    def here(self, seconds: float) -> bool:
        """Whether it is, or will not come any more; waits so long at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def content(self) -> dict[str, Any]:
        """Its training state, handed out once: a model that trains must not lie here, too."""
        content, self._content = self._content, None
        assert content is not None
        return content


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

    def numbers(self) -> list[int]:
        """Of all parcels that are kept here."""
        with self._lock:
            return sorted(self._kept)

    def forget(self, number: int) -> None:
        with self._lock:
            self._kept.pop(number, None)

    def give(self, number: int, to: int, tag: int) -> None:
        """Send a parcel that is kept here, in the background. A receiver that dies meanwhile does not get it."""
        parcel = self.kept(number)
        assert parcel is not None

        def send() -> None:
            with suppress(RuntimeError):
                self._group.send([parcel.data], to, tag).wait()

        threading.Thread(target=send, name="leyden-hop", daemon=True).start()

    def take(self, label: Label, source: int | None, tag: int) -> Arrival:
        """The model of a parcel from the file system, from here, or from another worker."""
        if label.file is not None:
            return Arrival(lambda: _read(label).content())
        if source == self.rank:
            parcel = self.kept(label.number)
            assert parcel is not None
            return Arrival(parcel.content)
        assert source is not None
        return Arrival(lambda: self._received(label, source, tag).content())

    def keep_copy(self, label: Label, source: int, tag: int, then: Callable[[], None]) -> None:
        """Have another worker's parcel here, too, in the background.

        Args:
            then: is called when it has come.
        """

        def receive() -> None:
            with suppress(RuntimeError):
                self._received(label, source, tag)
                then()

        threading.Thread(target=receive, name="leyden-hop", daemon=True).start()

    def _received(self, label: Label, source: int, tag: int) -> Parcel:
        into = torch.empty(label.size, dtype=torch.uint8)
        self._group.recv([into], source, tag).wait()
        parcel = Parcel(label, into)
        parcel.verify()
        self.keep(parcel)
        return parcel


def _read(label: Label) -> Parcel:
    assert label.file is not None
    with open(label.file, "rb") as file:
        parcel = Parcel(label, torch.frombuffer(bytearray(file.read()), dtype=torch.uint8))
    parcel.verify()
    return parcel
