"""Errors of the host during a training, each as one sentence."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .errors import Explained, SystemFailure
from .open_files import open_file_error
from .storage import hold, storage_error


class NoMemoryLeft(SystemFailure):
    """A system call for which the host, or the control group of the run, has no memory."""


@contextmanager
def system_errors(folder: Path) -> Generator[None, None, None]:
    """Context that turns errors of the host into SystemFailure; others pass unchanged.

    Args:
        folder: of the run. It is kept open, so that it is found again if it is renamed.
    """
    hold(folder)
    try:
        yield
    except Exception as error:
        failure = system_failure(error, folder)
        if failure is None:
            raise
        raise failure from error


def system_failure(error: Exception, folder: Path) -> SystemFailure | None:
    """An error of the host under a run folder, explained; None for an error that has another cause, or is explained."""
    return open_file_error(error) or storage_error(error, folder) or _memory_error(error)


def _memory_error(error: Exception) -> NoMemoryLeft | None:
    if not isinstance(error, OSError) or isinstance(error, Explained) or error.errno != errno.ENOMEM:
        return None
    what = "" if error.filename is None else f" for {error.filename}"
    return NoMemoryLeft(f"this host, or the limit of this run, has no memory left{what}: {error.strerror}")
