"""Accounting of a training step: seconds of data, compute and communication, and bytes sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ..core.step_timer import StepTimes
from ..core.traffic import Ledger


class StepClock:
    """Adds what each step takes to a training's StepTimes.

    Communication counts where the step waited for it; what overlaps with computation is not in it.

    Args:
        times: the sums, in place.
        ledger: of the strategy; None for one that does not count.
    """

    def __init__(self, times: StepTimes, ledger: Ledger | None):
        self._times = times
        self._ledger = ledger
        self._data = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = perf_counter()
        self._waited, self._sent, self._sent_between_nodes = self._communication()
        self._data = 0.0

    def begin_data(self) -> None:
        self._data_began, self._data_waited = perf_counter(), self._communication()[0]

    def end_data(self) -> None:
        """A part of the step has been read, and moved to the device."""
        self._data += perf_counter() - self._data_began - (self._communication()[0] - self._data_waited)

    @contextmanager
    def bytes_sent(self) -> Iterator[None]:
        """Count what is sent between steps; the time is no step's."""
        _, self._sent, self._sent_between_nodes = self._communication()
        yield
        self._count_sent()

    def no_step(self) -> None:
        """The data ended before the step: only what was sent counts."""
        self._count_sent()

    def updated(self, samples: int) -> None:
        """The optimizer's step has been made; callbacks and logging follow.

        Args:
            samples: of the step, over all workers.
        """
        times, now = self._times, perf_counter()
        communication = self._count_sent() - self._waited
        times.data += self._data
        times.communication += communication
        times.compute += now - self._began - self._data - communication
        times.total += now - self._began
        times.steps += 1
        times.samples += samples
        self._updated = now

    def end(self) -> None:
        """The step is complete."""
        self._times.total += perf_counter() - self._updated

    def _count_sent(self) -> float:
        """Add the bytes sent since the step began. Returns the seconds waited for the network since the start."""
        waited, sent, between_nodes = self._communication()
        self._times.sent += sent - self._sent
        self._times.sent_between_nodes += between_nodes - self._sent_between_nodes
        return waited

    def _communication(self) -> tuple[float, float, float]:
        """Seconds waited for the network, bytes sent, and what of them left the node, since the start."""
        ledger = self._ledger
        return (0.0, 0.0, 0.0) if ledger is None else (ledger.exposed_seconds, ledger.bytes, ledger.inter_node_bytes)
