"""End of a leading process whose host fails it."""

import sys
from collections.abc import Callable
from pathlib import Path

from ..base.errors import SystemFailure
from ..base.system_errors import system_errors
from .summary import last_good_checkpoint


def exit_code_of(work: Callable[[], int], run_dir: Path) -> int:
    """Do the work of a process that leads a run, or a node's part of it. Returns its exit code; 1 where the host fails
    it, after one sentence and how to go on."""
    try:
        with system_errors(run_dir):
            return work()
    except SystemFailure as error:
        print(f"{error}\n{last_good_checkpoint(run_dir)}", file=sys.stderr, flush=True)
        return 1
