"""What a run says: to the terminal, and to run.log in its folder."""

import logging
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger("leyden")


class _StandardOutput(logging.StreamHandler[TextIO]):
    """Handler that writes to the sys.stdout of the moment: a progress bar replaces it and puts lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stdout


def open_log(run_dir: Path, rank: int, workers: int, quiet: bool = False) -> None:
    """Messages of every worker go to run.log; those of the first, and warnings of all, to the terminal too.

    Args:
        quiet: the terminal gets warnings alone.
    """
    who = f" [rank {rank}]" if workers > 1 else ""
    file = logging.FileHandler(run_dir / "run.log")
    file.setFormatter(logging.Formatter(f"%(asctime)s{who} %(levelname)s %(message)s"))
    terminal = _StandardOutput()
    terminal.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"rank {rank}: %(message)s"))
    terminal.setLevel(logging.INFO if rank == 0 and not quiet else logging.WARNING)
    close_log()
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(file)
    log.addHandler(terminal)


def close_log() -> None:
    for handler in list(log.handlers):
        handler.close()
        log.removeHandler(handler)
