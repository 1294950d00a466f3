"""Log of a run: to the terminal, and to run.log in its folder."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from .printable import printable
from .regular_file import open_to_append

log = logging.getLogger("leyden")


class _StandardOutput(logging.StreamHandler[TextIO]):
    """Handler for the current sys.stdout, which a progress bar replaces to print lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stdout


class _Printable(logging.Formatter):
    """Formatter for the terminal: messages name files and keys, which may be a stranger's."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


RUN_LOG = "run.log"


class _RunLog(logging.FileHandler):
    """Handler for run.log. Lines that find no space wait in its buffer or are lost: no line is worth the run."""

    _warned = False

    def _open(self) -> TextIO:  # pyright: ignore[reportIncompatibleMethodOverride]
        return open_to_append(Path(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._warned:
            self._warned = True
            print(f"{self.baseFilename}: {error.strerror}: log lines may be lost", file=sys.stderr, flush=True)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def open_log(run_dir: Path | None, rank: int, workers: int, quiet: bool = False) -> None:
    """Log messages of every worker to run.log; those of rank 0, and warnings of all, also to the terminal.

    Args:
        run_dir: None: to the terminal alone.
        quiet: only warnings go to the terminal.
    """
    terminal = _StandardOutput()
    terminal.setFormatter(_Printable("%(message)s" if rank == 0 else f"rank {rank}: %(message)s"))
    terminal.setLevel(logging.INFO if rank == 0 and not quiet else logging.WARNING)
    close_log()
    log.setLevel(logging.INFO)
    log.propagate = False
    if run_dir is not None:
        source = f" [rank {rank}]" if workers > 1 else ""
        file = _RunLog(run_dir / RUN_LOG)
        file.setFormatter(_Printable(f"%(asctime)s{source} %(levelname)s %(message)s"))
        log.addHandler(file)
    log.addHandler(terminal)


def write_to_run_log(text: str) -> bool:
    """Append text to run.log, and nothing to the terminal. Returns whether the log is open."""
    files = [handler for handler in log.handlers if isinstance(handler, _RunLog)]
    for file in files:
        file.handle(logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR", "msg": text.rstrip()}))
    return bool(files)


def close_log() -> None:
    for handler in list(log.handlers):
        handler.close()
        log.removeHandler(handler)
