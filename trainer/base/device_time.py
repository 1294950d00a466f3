"""Time on a device: a CPU computes in the host's time; CUDA's is known by events in its stream, read once passed."""

from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

_RING = 4096
"""Pending intervals from which on those that have passed are read, also without a call of `read`."""

Moment = Any
"""A point in a device's time: the host's seconds, or a CUDA event."""


class DeviceTime:
    """Seconds of a device between moments, added up by name. The host never waits for it.

    Args:
        device: the device; None: the host.
    """

    def __init__(self, device: torch.device | None = None):
        self._cuda = device if device is not None and device.type == "cuda" else None
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds by name, of the intervals that have been read; on a CPU that is all of them."""
        self._pending: deque[tuple[str, Any, Any]] = deque()
        self.now: Callable[[], Moment] = perf_counter if self._cuda is None else self._event
        """This moment of the work that is queued."""

    @property
    def on_host(self) -> bool:
        """Whether the host's clock measures the device."""
        return self._cuda is None

    def _event(self) -> Moment:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._cuda))
        return event

    def add(self, name: str, began: Moment, ended: Moment) -> None:
        """Count an interval under a name."""
        if self._cuda is None:
            self.seconds[name] += ended - began
            return
        self._pending.append((name, began, ended))
        if len(self._pending) >= _RING:
            self.read()

    def rename(self, name: str, to: str) -> None:
        """What was counted under a name counts under another from now on."""
        if name in self.seconds:
            self.seconds[to] += self.seconds.pop(name)
        for index in range(len(self._pending) - 1, -1, -1):
            if self._pending[index][0] != name:
                break  # they are the newest
            self._pending[index] = (to, *self._pending[index][1:])

    def read(self) -> dict[str, float]:
        """`seconds`, with every interval that the device has come to the end of."""
        pending = self._pending
        while pending and pending[0][2].query():
            name, began, ended = pending.popleft()
            self.seconds[name] += began.elapsed_time(ended) / 1e3
        return self.seconds
