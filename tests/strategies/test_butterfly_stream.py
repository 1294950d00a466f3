"""The butterfly's CUDA stream, on streams that note what has happened before: nothing is read before it is written."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.butterfly.buckets import Bucket, make_buckets
from leyden.trainer.strategies.butterfly.comm_stream import CommStream
from leyden.trainer.strategies.butterfly.halving_doubling import ButterflyAllReduce, ButterflySchedule


class Stream:
    """Knows what its work comes after."""

    def __init__(self, *_: Any, **__: Any):
        self.past: set[Any] = set()

    def wait_event(self, event: "Event") -> None:
        self.past |= event.past

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event


class Event:
    clock = 0.0

    def __init__(self, **_: Any):
        self.past: set[Any] = set()
        self.at = 0.0

    def record(self, stream: Stream) -> None:
        self.past = set(stream.past)
        self.at = Event.clock

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "Event") -> float:
        return later.at - self.at


class Device:
    """Two streams of a device, the computing one and the other."""

    def __init__(self) -> None:
        self.main = self.current = Stream()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current, before = stream, self.current
        yield
        self.current = before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.current)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: None)
    monkeypatch.setattr(Event, "clock", 0.0)
    return made


class Exchange(ButterflyAllReduce):
    """Notes which gradients are there where they are averaged, and that averages are after it."""

    def __init__(self, device: Device, buckets: list[Bucket]):
        super().__init__(0, ButterflySchedule(Placement(2, 2), "near_first"), None)
        self.device = device
        self.owner = {piece.data_ptr(): id(bucket) for bucket in buckets for piece in bucket.pieces}
        self.averaged: list[int] = []

    def average(self, vector: Tensor) -> None:
        stream = self.device.current
        assert stream is not self.device.main, "the computing stream would wait for the network"
        assert ("gradients", self.owner[vector.data_ptr()]) in stream.past, "averaged before it is computed"
        self.averaged.append(vector.data_ptr())
        stream.past.add(("averages", vector.data_ptr()))


class Worker:
    """Four layers, a bucket each, the largest in four pieces."""

    def __init__(self, device: Device, lazy: bool):
        layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 32), nn.Linear(32, 2))
        self.device, self.buckets = device, make_buckets(layers, 300)
        self.exchange = Exchange(device, self.buckets)
        self.comm = CommStream(self.buckets, self.exchange, Ledger(0, Placement(2, 2)), lazy)
        self.pieces = [piece.data_ptr() for bucket in self.buckets for piece in bucket.pieces]

    def backward(self, order: list[int]) -> list[int]:
        """Hand buckets over in an order. Returns the pieces in that of their exchange."""
        self.exchange.averaged = []
        self.began = Event.clock + 1
        for number, index in enumerate(order):
            Event.clock += 1
            bucket = self.buckets[index]
            self.device.main.past.add(("gradients", id(bucket)))
            self.comm.hand_over(bucket, last=number == len(order) - 1)
        return self.exchange.averaged

    def update(self) -> None:
        for bucket in reversed(self.buckets):
            self.comm.wait(bucket)
            assert {("averages", piece.data_ptr()) for piece in bucket.pieces} <= self.device.main.past
        # a step later neither gradients nor averages are there
        self.device.main.past.clear()
        self.comm._stream.past.clear()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_streams_wait_for_each_other_and_the_host_for_nothing(device: Device, order: list[int]) -> None:
    worker = Worker(device, lazy=True)
    threads = threading.active_count()
    assert len(worker.pieces) > len(worker.buckets) == 4
    for _ in range(4):
        assert worker.backward(order) == worker.pieces, "the same order on every worker"
        assert not any(name == "averages" for name, _ in device.main.past), "the next forward is not held up"
        worker.update()
    assert threading.active_count() == threads


@pytest.mark.parametrize("lazy", [True, False])
def test_what_backward_has_no_time_for_goes_in_the_order_in_which_it_is_needed(
    device: Device, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    worker = Worker(device, lazy)
    record = Stream.record_event

    def slow(stream: Stream, event: Event | None = None) -> Event:
        """A piece is exchanged while two layers' gradients are computed."""
        event = record(stream, event)
        event.at = worker.began + 2.0 * len(worker.exchange.averaged)
        return event

    monkeypatch.setattr(Stream, "record_event", slow)
    for _ in range(2):
        worker.backward([0, 1, 2, 3])
        worker.update()
    worker.comm.agree()
    front = worker.comm.front
    assert front == (2 if lazy else len(worker.pieces)), "two pieces have begun before the fourth layer is done"
    assert worker.backward([0, 1, 2, 3]) == worker.pieces[:front] + worker.pieces[front:][::-1]
    worker.update()


def test_what_is_not_waited_for_is_found(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(device, lazy=True)
    monkeypatch.setattr(Stream, "wait_event", lambda *_: None)
    with pytest.raises(AssertionError, match="averaged before it is computed"):
        worker.backward([0, 1, 2, 3])
