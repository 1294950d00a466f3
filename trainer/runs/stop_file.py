"""A stop request as a file in the run's folder: for a run in a process whose signals are its user's, not Leyden's."""

from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from ..base.signals import StopRequest
from .slurm import STOP_REQUESTED

_POLL_S = 0.5


class StopFile:
    """A context: inside it the training of this process takes a stop request from the file of a folder.

    A request that an earlier process has left is removed, and so is this one's at the end.
    """

    def __init__(self, folder: Path):
        self._file = folder / STOP_REQUESTED
        self._ended = Event()

    def __enter__(self) -> None:
        self._file.unlink(missing_ok=True)
        Thread(target=self._run, name="leyden-stop", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with suppress(OSError):  # the disk fails or is not mounted any more
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            if self._file.exists() and StopRequest.current is not None:
                StopRequest.current.request()
                return
