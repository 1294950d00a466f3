"""Thread that writes a checkpoint while the training goes on."""

import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

from torch.distributed import Store

_POLL_S = 0.02
_WRITTEN, _FAILED = "written", "failed"


class Abandoned(Exception):
    """The checkpoint cannot become complete: a worker did not write its part."""


class BackgroundWriter:
    """One checkpoint at a time, written by a thread of its own."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._ending = Event()
        self._deferred: list[Callable[[], None]] = []

    @property
    def failed(self) -> bool:
        """Whether the checkpoint could not be written: `wait` raises the error."""
        return self._error is not None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write. The checkpoint before must be complete."""
        assert self._thread is None, "two checkpoints at once"

        def run() -> None:
            self.run_deferred()
            write()

        self._thread = Thread(target=self._run, args=(run,), name="checkpoint")
        self._thread.start()

    def run_here(self, write: Callable[[], None]) -> None:
        """Write in this thread; an error is raised by `wait` as well."""
        self._run(write)

    def defer(self, action: Callable[[], None]) -> None:
        """Leave an action to the thread that writes the next checkpoint, before it writes, or to `run_deferred`."""
        self._deferred.append(action)

    def run_deferred(self) -> None:
        actions, self._deferred = self._deferred, []
        for action in actions:
            action()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Abandoned:
            pass
        except BaseException as error:  # raised by `wait`, in the thread that trains
            self._error = error

    def wait(self) -> None:
        """Wait until the checkpoint is complete.

        Raises:
            Exception: whatever has kept it from being written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait, as far as this worker is concerned, where another error ends the training."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_parts(self, store: Store, keys: Sequence[str]) -> None:
        """Wait until all workers have written their files; called in the first worker's thread.

        Raises:
            Abandoned: one has failed, or this training ends by an error.
        """
        while not store.check(list(keys)):
            if self._ending.is_set():
                raise Abandoned
            time.sleep(_POLL_S)
        if any(store.get(key).decode() != _WRITTEN for key in keys):
            raise Abandoned


def write_part(store: Store, key: str, write: Callable[[], None]) -> None:
    """Write a worker's file, and tell the first worker that it is there, or will not be."""
    try:
        write()
    except BaseException:
        store.set(key, _FAILED)
        raise
    store.set(key, _WRITTEN)
