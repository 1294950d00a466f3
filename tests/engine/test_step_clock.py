"""Time of a step by phase: the host's on a CPU, the device's on CUDA, where the host never waits to know it."""

from typing import Any

import pytest
import torch

from leyden.trainer.base import device_time
from leyden.trainer.base.device_time import DeviceTime
from leyden.trainer.core.step_timer import StepTimes
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.engine.step_clock import StepClock

CUDA = torch.device("cuda", 0)


class Gpu:
    """A device that takes work in a queue: `compute` queues it, `run` does it."""

    def __init__(self) -> None:
        self.queued = 0.0
        """Time at which all work is done that is queued."""
        self.done = 0.0
        self.waits = 0

    def compute(self, seconds: float) -> None:
        self.queued += seconds

    def run(self, until: float = float("inf")) -> None:
        self.done = min(self.queued, until)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing
            self.at = float("nan")

        def record(self, stream: Any) -> None:
            self.at = made.queued

        def query(self) -> bool:
            return self.at <= made.done

        def elapsed_time(self, later: "Event") -> float:
            assert later.query(), "torch raises for an event that has not passed"
            return 1e3 * (later.at - self.at)

        def synchronize(self) -> None:
            made.waits += 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return made


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The host as a device that has always done its work."""
    made = Gpu()
    monkeypatch.setattr(device_time, "perf_counter", lambda: made.queued)
    return made


def make_step(clock: StepClock, ledger: Ledger, device: Gpu, parts: int = 1) -> None:
    """Data 1 s (half of it a wait), forward 2, backward 4 and 8 more for the network, update 16, logging 32."""
    clock.begin()
    for _ in range(parts):
        clock.begin_data()
        began = ledger.now()
        device.compute(0.5)
        ledger.waited(began)
        device.compute(0.5)
        clock.end_data()
        device.compute(2.0)
        clock.begin_backward()
        device.compute(4.0)
        began = ledger.now()
        device.compute(8.0)
        ledger.waited(began)
        clock.end_backward()
        device.compute(16.0)
    clock.end_update(10)
    device.compute(32.0)


def expected(steps: int, logged: int, parts: int = 1) -> dict[str, float]:
    n = steps * parts
    total = n * 31.0 + logged * 32.0
    return {
        "data": n * 0.5, "forward": n * 2.0, "backward": n * 4.0, "update": n * 16.0,
        "communication": n * 8.5, "other": logged * 32.0, "total": total,
    }  # fmt: skip


@pytest.mark.parametrize("parts", [1, 3])
def test_the_phases_of_a_cpu_are_the_hosts(host: Gpu, parts: int) -> None:
    times, ledger = StepTimes(data=100.0, total=100.0), Ledger(0, Placement(1, 1))
    before = times.data
    clock = StepClock(times, ledger, torch.device("cpu"))
    for done in range(1, 4):
        make_step(clock, ledger, host, parts)
        assert times.backward == done * parts * 4.0, "known to the callbacks of the step"
        clock.end()
        host.compute(1000.0)  # a validation: no step's time
        began = ledger.now()
        host.compute(50.0)
        ledger.waited(began)
    clock.read()
    times.data, times.total = times.data - before, times.total - before
    assert times.summary() == pytest.approx(expected(3, 3, parts))
    assert times.samples == 30


def test_the_phases_of_a_gpu_are_its_own_and_the_host_never_waits(gpu: Gpu) -> None:
    times, ledger = StepTimes(), Ledger(0, Placement(1, 1), CUDA)
    clock = StepClock(times, ledger, CUDA)
    for _ in range(3):
        make_step(clock, ledger, gpu)
        clock.end()
    assert times.steps == 3
    clock.read()
    assert times.total == 0.0, "nothing is done yet"
    gpu.run(until=2 * 63.0 + 3.0)  # two steps, and data and forward of the third
    clock.read()
    almost = expected(2, 2) | {"data": 1.5, "forward": 6.0, "communication": 17.5, "total": 129.0}
    assert times.summary() == pytest.approx(almost)
    gpu.run()
    clock.read()
    assert times.summary() == pytest.approx(expected(3, 3))
    assert ledger.exposed_seconds == pytest.approx(3 * 8.5)
    assert gpu.waits == 0


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_data_that_ends_is_no_steps(request: pytest.FixtureRequest, kind: str) -> None:
    device: Gpu = request.getfixturevalue("host" if kind == "cpu" else "gpu")
    times, ledger = StepTimes(), Ledger(0, Placement(1, 1), torch.device(kind))
    clock = StepClock(times, ledger, torch.device(kind))
    make_step(clock, ledger, device)
    clock.end()
    clock.begin()
    clock.begin_data()
    began = ledger.now()
    device.compute(5.0)
    ledger.waited(began)
    clock.no_step()
    device.compute(7.0)
    device.run()
    clock.read()
    assert times.summary() == pytest.approx(expected(1, 1))
    assert ledger.exposed_seconds == pytest.approx(8.5 + 5.0)


def test_a_training_that_never_logs_keeps_few_events(gpu: Gpu) -> None:
    times = DeviceTime(CUDA)
    for number in range(3 * device_time._RING):
        began = times.now()
        gpu.compute(1.0)
        times.add("forward", began, times.now())
        gpu.run(until=number - 100.0)
    assert len(times._pending) <= device_time._RING
    assert gpu.waits == 0
    gpu.run()
    assert times.read() == {"forward": 3.0 * device_time._RING}


def test_the_wait_of_one_epoch_is_not_lost_to_the_next(gpu: Gpu) -> None:
    times, ledger = StepTimes(), Ledger(0, Placement(1, 1), CUDA)
    for _ in range(2):
        clock = StepClock(times, ledger, CUDA)
        make_step(clock, ledger, gpu)
        clock.end()
        gpu.run()
        clock.read()
    assert times.summary() == pytest.approx(expected(2, 2))
