"""Accounting of a training step: seconds of each phase, communication, and bytes sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import torch

from ..base.device_time import DeviceTime
from ..core.step_timer import StepTimes
from ..core.traffic import Ledger

_DATA, _FORWARD, _BACKWARD, _UPDATE, _OTHER = "data", "forward", "backward", "update", "other"
_TRAINED = (_DATA, _FORWARD, _BACKWARD, _UPDATE)
_DRAWING = "data, of a step that may not come"
_OUTSIDE = ""


class StepClock:
    """Adds what each step takes to a training's StepTimes.

    On a CPU by the host's clock. On CUDA, where the host only queues work, by events between the phases in the stream:
    the times are those of the device, of the work that it has done. `read` never waits for it.

    Communication counts where the step waited for it; what overlaps with computation is not in it.

    Args:
        times: the sums, in place.
        ledger: of the strategy; None for one that does not count.
        device: of the worker.
    """

    def __init__(self, times: StepTimes, ledger: Ledger | None, device: torch.device):
        self._times = times
        self._before = copy(times)
        self._ledger = ledger
        self._waited_before = dict(ledger.waits.read()) if ledger is not None else {}
        self._time = DeviceTime(device)
        self._now = self._time.now
        self._on_host = self._time.on_host
        self._seconds = self._time.seconds
        self._phase = _OUTSIDE

    def begin(self) -> None:
        """A step begins: until its data is read, with what prepares the forward."""
        if self._ledger is not None:
            self._sent, self._sent_between_nodes = self._bytes()
        self._enter(_FORWARD)

    def begin_data(self) -> None:
        self._enter(_DRAWING)

    def end_data(self) -> None:
        """A part of the step has been read, and moved to the device."""
        self._phase = _DATA
        self._enter(_FORWARD)
        if self._ledger is not None:
            self._ledger.waits.rename(_DRAWING, _DATA)

    def begin_backward(self) -> None:
        self._enter(_BACKWARD)

    def end_backward(self) -> None:
        """What follows is the update, unless the step has another part."""
        self._enter(_UPDATE)

    @contextmanager
    def bytes_sent(self) -> Iterator[None]:
        """Count what is sent between steps; the time is no step's."""
        self._sent, self._sent_between_nodes = self._bytes()
        yield
        self._count_sent()

    def no_step(self) -> None:
        """The data ended before the step: only what was sent counts."""
        self._phase = _OUTSIDE
        self._enter(_OUTSIDE)
        if self._ledger is not None:
            self._ledger.waits.rename(_DRAWING, _OUTSIDE)
        self._count_sent()

    def end_update(self, samples: int) -> None:
        """The optimizer's step has been made; callbacks and logging follow.

        Args:
            samples: of the step, over all workers.
        """
        self._enter(_OTHER)
        self._count_sent()
        self._times.steps += 1
        self._times.samples += samples
        if self._on_host:
            self.read()  # callbacks record the times with the step

    def end(self) -> None:
        """The step is complete."""
        self._enter(_OUTSIDE)

    def read(self) -> None:
        """Enter the phases that the device has come to the end of."""
        times, before, spent = self._times, self._before, self._time.read()
        data, forward, backward, update = spent[_DATA], spent[_FORWARD], spent[_BACKWARD], spent[_UPDATE]
        times.total = before.total + data + forward + backward + update + spent[_OTHER]
        if self._ledger is not None:
            waits, earlier = self._ledger.waits.read(), self._waited_before
            waited = [waits[phase] - earlier.get(phase, 0.0) for phase in _TRAINED]
            data, forward = data - waited[0], forward - waited[1]
            backward, update = backward - waited[2], update - waited[3]
            times.communication = before.communication + sum(waited)
        times.data, times.forward = before.data + data, before.forward + forward
        times.backward, times.update = before.backward + backward, before.update + update

    def _enter(self, phase: str) -> None:
        """Count the phase that ends here, and begin another."""
        now = self._now()
        if self._phase == _OUTSIDE:
            pass
        elif self._on_host:  # `add` written out: every step enters seven phases
            self._seconds[self._phase] += now - self._since
        else:
            self._time.add(self._phase, self._since, now)
        self._phase, self._since = phase, now
        if self._ledger is not None:
            self._ledger.phase = _OUTSIDE if phase == _OTHER else phase

    def _count_sent(self) -> None:
        """Add the bytes sent since the step began."""
        if self._ledger is None:
            return
        sent, between_nodes = self._bytes()
        self._times.sent += sent - self._sent
        self._times.sent_between_nodes += between_nodes - self._sent_between_nodes

    def _bytes(self) -> tuple[float, float]:
        """Bytes sent since the start, and what of them left the node."""
        ledger = self._ledger
        return (0.0, 0.0) if ledger is None else (ledger.bytes, ledger.inter_node_bytes)
