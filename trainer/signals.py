"""Stopping on request: a signal sets a flag, workers agree on the step, the loop saves and ends."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

_KEY = "leyden/stop"
_ON_ITS_WAY_S = 5.0
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


@dataclass(frozen=True)
class LeftToTheWorker:
    """Makes a process that reads data deaf to the signals that its worker takes: who ends a run, as Slurm or a service
    manager does, may tell all its processes, and a worker that saves needs its data until then.
    """

    first: Callable[[int], None] | None = None
    """What else such a process begins with; it gets its number."""

    def __call__(self, number: int) -> None:
        for told in SIGNALS:
            signal.signal(told, signal.SIG_IGN)
        if self.first is not None:
            self.first(number)


class StopRequest:
    """Set by SIGTERM, SIGHUP and SIGINT, read by the loop between two steps.

    Several workers get the signal at different times, and each step is a meeting of all of them. So a worker that has
    the flag posts the step it stands at and goes on; once everybody has posted, all stop two steps after the largest.
    Nobody can be past that step: a step needs everybody's gradients of the step before it (of its own, unless updates
    are lazy), so whoever stands two steps after the largest has seen all posts. Workers
    that meet every `lead` steps only stop so many steps after it, and one more.
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

    def told(self) -> signal.Signals:
        """The signal that another worker had first. It comes to all; SIGTERM where it does not."""
        end = time.monotonic() + _ON_ITS_WAY_S
        while self.signal is None and time.monotonic() < end:
            time.sleep(0.01)
        self.signal = self.signal or signal.SIGTERM
        return self.signal

    def agreed(self) -> signal.Signals | None:
        """The signal that one of the workers has got; None: the training's time is up. All workers must call it."""
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_world_size() > 1:
            every: list[signal.Signals | None] = [None] * dist.get_world_size()
            dist.all_gather_object(every, self.signal)
            self.signal = next((got for got in every if got is not None), None)
        return self.signal

    def due(self, step: int, lead: int = 1, over: bool = False) -> bool:
        """Whether to stop before the next step. Costs nothing until a signal has come.

        Args:
            lead: steps by which one worker can be ahead of another.
            over: the training's time is up on this worker, as it is, at about the same time, on the others.
        """
        if self.signal is None and not over:
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
        return step > lead + max(int(store.get(f"{_KEY}/{other}")) for other in range(workers))
