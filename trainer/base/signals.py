"""Stopping on request: a signal sets a flag, workers agree on the step, the loop saves and ends."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from types import FrameType
from typing import Any, ClassVar

from .process import is_running

_KEY = "leyden/stop"
_DELIVERY_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]
STATUS = {signal.SIGTERM: "preempted", signal.SIGHUP: "preempted", signal.SIGINT: "interrupted"}
"""Status of a run that saved and stopped, by signal."""


def install_handlers(handler: Handler) -> dict[signal.Signals, Any]:
    """Install a handler for every stop signal that is not ignored (nohup). Returns the old handlers."""
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in taken}


def restore_handlers(kept: dict[signal.Signals, Any]) -> None:
    """Undo `install_handlers`."""
    for number, handler in kept.items():
        signal.signal(number, handler)


@contextmanager
def interrupts_deferred() -> Generator[None, None, None]:
    """Context after which a SIGINT that came in it is raised: libraries swallow one while they import each other."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if callable(previous):
        signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        if callable(previous):
            signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


@dataclass(frozen=True)
class IgnoreStopSignals:
    """`worker_init_fn` of data loaders that ignores stop signals in reader processes.

    Slurm and service managers signal every process of a run, and a worker needs its data until it has saved. A reader
    whose worker was killed before ends here: torch's looks whether its parent changes from now on, and would stay.
    """

    first: Callable[[int], None] | None = None
    """Further initialization, called with the number of the reader process."""

    def __call__(self, number: int) -> None:
        worker = parent_process()
        if worker is not None and worker.pid is not None and not is_running(worker.pid):
            os._exit(1)
        for ignored in SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        if self.first is not None:
            self.first(number)


class StopRequest:
    """Stop flag, set by SIGTERM, SIGHUP and SIGINT, read by the loop between two steps.

    Workers receive the signal at different times, but must stop at the same step, as each step is collective. So a
    worker with the flag posts its current step to the store and continues; once all have posted, they stop two steps
    after the largest. No worker can be past that step: a step needs the gradients of all workers of the step before it
    (of its own, unless updates are lazy), so a worker two steps after the largest has seen every post. Workers that
    synchronize only every `max_step_skew` steps stop that many steps after it, and one more.

    Attributes:
        current: of the worker that trains in this process next to the program that has called it.
    """

    current: ClassVar["StopRequest | None"] = None

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._posted = False

    def listen(self) -> dict[signal.Signals, Any]:
        """Install the handler; returns the old ones. A second SIGINT ends the process at once."""
        return install_handlers(self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(130)
        self.signal = signal.Signals(number)

    def request(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Request the stop as the signal would, from any thread."""
        self.signal = self.signal or number

    def received_signal(self) -> signal.Signals:
        """The received signal, waited for briefly where only another worker has it yet; else SIGTERM."""
        end = time.monotonic() + _DELIVERY_S
        while self.signal is None and time.monotonic() < end:
            time.sleep(0.01)
        self.signal = self.signal or signal.SIGTERM
        return self.signal

    def agreed_signal(self, all_gather: Callable[[int], list[int]]) -> signal.Signals | None:
        """The signal that any worker has received; None: the time limit is reached. Collective.

        Args:
            all_gather: returns every worker's number.
        """
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_world_size() > 1:
            received = next(filter(None, all_gather(int(self.signal or 0))), None)
            self.signal = None if received is None else signal.Signals(received)
        return self.signal

    def due(self, step: int, max_step_skew: int = 1, over: bool = False) -> bool:
        """Whether to stop before the next step. Free until a signal has come.

        Args:
            max_step_skew: steps by which one worker can be ahead of another.
            over: the time limit is reached on this worker, and at about the same time on the others.
        """
        if self.signal is None and not over:
            return False
        # not at the top: the agent installs its handlers before any slow import
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return True
        store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]  # has no public name
        rank, workers = dist.get_rank(), dist.get_world_size()
        if not self._posted:
            store.set(f"{_KEY}/{rank}", str(step))
            self._posted = True
        if not store.check([f"{_KEY}/{other}" for other in range(workers)]):
            return False
        return step > max_step_skew + max(int(store.get(f"{_KEY}/{other}")) for other in range(workers))
