"""Error of a process that has as many open files as it may have, as one sentence."""

import errno
import os
import resource

from .errors import Explained, SystemFailure

_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class TooManyOpenFiles(SystemFailure):
    """The process, or its host, may have no more open files."""


def open_file_error(error: Exception) -> TooManyOpenFiles | None:
    """A lack of file descriptors, explained; None for an error that has another cause."""
    return None if isinstance(error, Explained) or not is_lack(error) else TooManyOpenFiles(_sentence(error))


def is_lack(error: BaseException) -> bool:
    """Whether an error says that there are too many open files."""
    # torch and gloo say RuntimeError, with the system's text
    return getattr(error, "errno", None) in _TOO_MANY or any(os.strerror(number) in str(error) for number in _TOO_MANY)


def _sentence(error: BaseException) -> str:
    if getattr(error, "errno", None) == errno.ENFILE:
        return "too many open files on this host"
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = "raise the limit, or use fewer dataset.num_workers"
    return f"too many open files: a process may have {limit} (ulimit -n); {remedy}"
