"""`python -m leyden.trainer.launch RUN_DIR [VERB] [CHECKPOINT]`: one run in a process of its own."""

import sys
from pathlib import Path

from . import start

if __name__ == "__main__":
    run_dir, verb, checkpoint = [*sys.argv[1:], *["", "train", ""][len(sys.argv) - 1 :]]
    try:
        code = start(Path(run_dir), verb, Path(checkpoint) if checkpoint else None)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
