"""Threads that read samples, for as long as a run lives."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic, perf_counter

import torch

_END_S = 5.0
"""Seconds in which a thread may end what it reads; one that waits for a dead disk is left to the end of the process."""


class ReadingThreads:
    """Runs chunks of work, in the order in which they were added, `limit` of them at the same time.

    Threads are started by the first chunk, so that what is forked before it has none, and end with `close`, with this
    object, or with the process.

    Args:
        limit: may be changed at any time.

    Attributes:
        samples: read so far.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.samples = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._running = 0
        self._busy_s = self._busy_since = 0.0
        # A thread refers to this queue alone, so that it does not keep this object. Its `put` takes no lock, as it may
        # be called by the garbage collector.
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._end_threads = weakref.finalize(self, _send_ends, self._calls, self._threads)
        self._end_threads.atexit = False
        _alive.add(self)

    def add(self, chunk: Callable[[], None], samples: int) -> None:
        """Have a chunk run. It must not raise. Only the thread that computes the training may call this.

        Args:
            samples: number of samples that it reads.
        """
        assert self._end_threads.alive, "the threads have ended"
        if len(self._threads) < self.limit:
            self._start()
        with self._lock:
            self._waiting.append((chunk, samples))
            wanted = self._running < self.limit
            if wanted:
                self._enter()
        if wanted:
            self._calls.put(self._run)

    def remove(self, chunks: set[Callable[[], None]]) -> None:
        """Forget those of the chunks that have not begun."""
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[0] not in chunks)

    def busy_seconds(self) -> float:
        """Seconds in which at least one thread was reading."""
        with self._lock:
            return self._busy_s + (perf_counter() - self._busy_since if self._running else 0.0)

    def close(self) -> None:
        """End the threads; one that is stuck is left behind."""
        with self._lock:
            self._waiting.clear()
        self._end_threads()
        end = monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - monotonic()))

    def _start(self) -> None:
        """Start threads up to the limit, each of which computes with one thread of torch's.

        A thread that says so changes the number with which torch starts later threads of the process as well (those of
        autograd, say): it is set again.
        """
        began: SimpleQueue[None] = SimpleQueue()
        count = torch.get_num_threads()
        for number in range(len(self._threads), self.limit):
            name = f"leyden-reader-{number}"
            thread = threading.Thread(target=_serve, args=(self._calls, began), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
            began.get()
        torch.set_num_threads(count)

    def _run(self) -> None:
        """Run chunks while there are any, in one of the threads."""
        read = 0
        while True:
            with self._lock:
                self.samples += read
                if not self._waiting or self._running > self.limit:
                    self._leave()
                    return
                chunk, read = self._waiting.popleft()
            chunk()
            del chunk  # it may refer to a batch

    def _enter(self) -> None:
        if self._running == 0:
            self._busy_since = perf_counter()
        self._running += 1

    def _leave(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._busy_s += perf_counter() - self._busy_since


def _serve(calls: "SimpleQueue[Callable[[], None] | None]", began: "SimpleQueue[None]") -> None:
    torch.get_num_threads()  # else torch sets the process's number in this thread at its first operation
    torch.set_num_threads(1)
    began.put(None)
    while (call := calls.get()) is not None:
        call()
        del call  # else a waiting thread would keep what it has run


def _send_ends(calls: "SimpleQueue[Callable[[], None] | None]", threads: list[threading.Thread]) -> None:
    for _ in threads:
        calls.put(None)


_alive: "weakref.WeakSet[ReadingThreads]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter is taken down: a thread that comes back into it later would end the process hard."""
    for threads in list(_alive):
        threads.close()
