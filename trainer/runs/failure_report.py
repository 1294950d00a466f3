"""Report of a failed run: on the terminal, and at the end of its run.log."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from ..base.log import RUN_LOG
from ..base.paths import shorten_path
from ..base.printable import printable
from ..base.regular_file import open_to_append
from .summary import last_good_checkpoint

_one_line = False


def report_in_one_line() -> None:
    """Have this process print one line of a failure: a trial's terminal is that of its sweep."""
    global _one_line
    _one_line = True


def report_failure(run_dir: Path, verb: str, message: str, traceback: str) -> None:
    """Print why a run has failed, and how to go on. An evaluation writes nothing into the run.

    Args:
        traceback: for the terminal; empty where the message says it all.
    """
    if verb == "eval":
        _print(traceback, message)
        return
    how_on = last_good_checkpoint(run_dir)
    log_file = run_dir / RUN_LOG
    with suppress(OSError), open_to_append(log_file) as file:
        file.write(printable(f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 ERROR {message}\n{how_on}\n"))
    if _one_line:
        _print("", f"failed: {message.partition(chr(10))[0]} ({shorten_path(log_file)})")
    else:
        _print(traceback, f"{message}\n{how_on}")


def _print(traceback: str, text: str) -> None:
    if traceback:
        print(traceback, file=sys.stderr)
    print(text, file=sys.stderr, flush=True)
