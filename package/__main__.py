"""The command `leyden`, also as `python -m leyden`."""

import sys
from typing import NoReturn


def entry_point() -> NoReturn:
    """The console script."""
    try:
        # not at the top, where an interruption would be shown with its traceback
        from leyden.trainer.cli.main import main
    except KeyboardInterrupt:
        print("leyden: interrupted, nothing was started", file=sys.stderr)
        sys.exit(130)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry_point()
