"""Logs that lose lines while the disk is full: a line of a log is not worth the run."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ...base.log import log
from ...base.paths import shorten_path
from ...base.storage import ENOUGH_BYTES, NO_SPACE, free_bytes, reason_of_loss


class LossyLog:
    """State of one log file on a disk that can be full.

    Args:
        path: of the file, for the warning.
    """

    def __init__(self, path: Path):
        self._path = path
        self._full = self._warned = False

    def has_space(self) -> bool:
        """Whether to write: not on a disk that was full and still is."""
        if self._full and free_bytes(self._path.parent) >= ENOUGH_BYTES:
            self._full = False
        return not self._full

    @contextmanager
    def losing(self) -> Generator[None, None, None]:
        """Context in which a full disk costs what was to be written; other errors pass."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._full = True
            if not self._warned:
                text = "%s: %s: entries are lost until there is space"
                log.warning(text, shorten_path(self._path), reason_of_loss(error, self._path.parent))
            self._warned = True
