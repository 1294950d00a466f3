"""Stopping on request: a signal sets a flag, workers agree on the step, the loop saves and ends."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_KEY = "leyden/stop"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]
STATUS = {signal.SIGTERM: "preempted", signal.SIGHUP: "preempted", signal.SIGINT: "interrupted"}
"""What a run that saved and stopped is called."""


def take_over(handler: Handler) -> dict[signal.Signals, Any]:
    """Install a handler for every signal that asks for an end, unless it is ignored (nohup). Returns the old ones."""
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in taken}


def give_back(kept: dict[signal.Signals, Any]) -> None:
    """Undo `take_over`."""
    for number, handler in kept.items():
        signal.signal(number, handler)


class StopRequest:
    """Set by SIGTERM, SIGHUP and SIGINT, read by the loop between two steps.

    Several workers get the signal at different times, and each step is a meeting of all of them. So a worker that has
    the flag posts the step it stands at and goes on; once everybody has posted, all stop two steps after the largest.
    Nobody can be past that step: a step needs everybody's gradients of the step before it (of its own, unless updates
    are lazy), so whoever stands two steps after the largest has seen all posts.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._posted = False

    def listen(self) -> dict[signal.Signals, Any]:
        """Take over the signals; returns the old handlers. A second SIGINT ends the process at once."""
        return take_over(self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(130)
        self.signal = signal.Signals(number)

    def due(self, step: int) -> bool:
        """Whether to stop before the next step. Costs nothing until a signal has come."""
        if self.signal is None:
            return False
        # not above: the agent takes signals over before anything slow is imported
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return True
        store = dist.distributed_c10d._get_default_store()
        rank, workers = dist.get_rank(), dist.get_world_size()
        if not self._posted:
            store.set(f"{_KEY}/{rank}", str(step))
            self._posted = True
        if not store.check([f"{_KEY}/{other}" for other in range(workers)]):
            return False
        return step > 1 + max(int(store.get(f"{_KEY}/{other}")) for other in range(workers))
