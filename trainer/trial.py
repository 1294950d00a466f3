"""`python -m leyden.trainer.trial RUN_DIR SWEEP_PID VERB`: one trial, in a process that ends with its sweep."""

import signal
import sys
from pathlib import Path

from .launch import start
from .launch.parent import end_with_parent


def main(run_dir: Path, sweep: int, verb: str) -> int:
    """Run a frozen config. Returns its exit code, 2 for what only building its parts could show."""
    if not end_with_parent(sweep, signal.SIGTERM):
        return 143
    try:
        return start(run_dir, verb)
    except ValueError as error:
        print(f"leyden: this trial was not started: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
