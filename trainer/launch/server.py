"""One parameter server, a child of the agent: leyden.trainer.launch.server RUN_DIR VERB [CHECKPOINT]."""

import os
import signal
import sys
from pathlib import Path

from ..config import load
from ..signals import SIGNALS
from ..targets import make_importable
from .parent import end_with_parent
from .worker import FAILURES, _exit, _record_failure


def main() -> None:
    run_dir, index = Path(sys.argv[1]), int(os.environ["LEYDEN_SERVER"])
    if not end_with_parent(int(os.environ["LEYDEN_AGENT"]), signal.SIGKILL):
        os._exit(1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # it ends when its workers have left
    try:
        from ..servers.server import serve

        config = load(run_dir)
        make_importable(config)
        serve(config, run_dir, index)
    except Exception as error:
        _record_failure(Path(os.environ[FAILURES]) / f"server-{index}.json", error)
        _exit(1)
    _exit(0)


if __name__ == "__main__":
    main()
