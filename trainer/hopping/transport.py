"""Transport of snapshots between workers, in the background of training."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from ..base.handshake import inherited_secret
from ..core.communication.authenticated_group import UNLIMITED, connect_group
from ..core.communication.tcp_store import open_store
from .snapshot import Snapshot, SnapshotMetadata


class IncomingSnapshot:
    """Snapshot on its way to this worker, received and unpacked by a thread.

    Args:
        receive: returns the training state, or raises.
    """

    def __init__(self, receive: Callable[[], dict[str, Any]]):
        self._receive = receive
        self._content: dict[str, Any] | None = None
        self.error: Exception | None = None
        """Why it will not arrive: its sender was lost, it was damaged, or its file cannot be read."""
        self.seconds = 0.0
        """Duration of the transfer."""
        self._thread = threading.Thread(target=self._run, name="leyden-hop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = perf_counter()
        try:
            self._content = self._receive()
        except Exception as error:
            self.error = error
        self.seconds = perf_counter() - began

    def wait_for_arrival(self, timeout: float) -> bool:
        """Whether it has arrived, or failed to, within the timeout."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def content(self) -> dict[str, Any]:
        """The training state, once: another reference would keep it in memory while the model trains."""
        content, self._content = self._content, None
        assert content is not None
        return content


class Transport:
    """Snapshots stored on this worker, and the process group that they are sent through.

    Models move and the data stays: one model and its optimizer cross the network once a sub-epoch, no step waits for
    another worker, and no worker reads another's partition. The group is not the default one: each worker trains alone,
    and Lightning would take the members of a default group for replicas of one model.
    """

    def __init__(self, rank: int, workers: int):
        self.rank = rank
        self._stored: dict[int, Snapshot] = {}
        self._lock = threading.Lock()
        self._group: Any = None
        if workers > 1:
            store = dist.PrefixStore(f"leyden/pipeline/{os.environ['TORCHELASTIC_RUN_ID']}", open_store())
            self._group = connect_group(store, rank, workers, inherited_secret(), "snapshots")

    def store(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._stored[snapshot.metadata.number] = snapshot

    def stored_snapshot(self, number: int) -> Snapshot | None:
        with self._lock:
            return self._stored.get(number)

    def numbers(self) -> list[int]:
        """Numbers of the stored snapshots."""
        with self._lock:
            return sorted(self._stored)

    def drop(self, number: int) -> None:
        with self._lock:
            self._stored.pop(number, None)

    def send(self, number: int, to: int, tag: int) -> None:
        """Send a stored snapshot in the background. The loss of the receiver is no error here."""
        snapshot = self.stored_snapshot(number)
        assert snapshot is not None

        def send() -> None:
            with suppress(RuntimeError):
                self._group.send([snapshot.data], to, tag).wait(UNLIMITED)

        threading.Thread(target=send, name="leyden-hop", daemon=True).start()

    def receive(self, metadata: SnapshotMetadata, source: int | None, tag: int) -> IncomingSnapshot:
        """Begin to receive a snapshot: from its file, from this worker, or from another."""
        if metadata.file is not None:
            return IncomingSnapshot(lambda: _read(metadata).content())
        if source == self.rank:
            snapshot = self.stored_snapshot(metadata.number)
            assert snapshot is not None
            return IncomingSnapshot(snapshot.content)
        assert source is not None
        return IncomingSnapshot(lambda: self._receive(metadata, source, tag).content())

    def receive_copy(self, metadata: SnapshotMetadata, source: int, tag: int, on_received: Callable[[], None]) -> None:
        """Receive and store a redundant copy of another worker's snapshot in the background."""

        def receive() -> None:
            with suppress(RuntimeError):
                self._receive(metadata, source, tag)
                on_received()

        threading.Thread(target=receive, name="leyden-hop", daemon=True).start()

    def _receive(self, metadata: SnapshotMetadata, source: int, tag: int) -> Snapshot:
        data = torch.empty(metadata.size, dtype=torch.uint8)
        self._group.recv([data], source, tag).wait(UNLIMITED)
        snapshot = Snapshot(metadata, data)
        snapshot.verify()
        self.store(snapshot)
        return snapshot


def _read(metadata: SnapshotMetadata) -> Snapshot:
    assert metadata.file is not None
    with open(metadata.file, "rb") as file:
        snapshot = Snapshot(metadata, torch.frombuffer(bytearray(file.read()), dtype=torch.uint8))
    snapshot.verify()
    return snapshot
