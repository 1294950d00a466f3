"""One parameter server, a child of the agent: leyden.trainer.launch.server RUN_DIR VERB [CHECKPOINT]."""

import os
import signal
import sys
from pathlib import Path

from ..config import load
from ..signals import SIGNALS
from ..targets import make_importable
from .child import end_with_agent, run_as_child


def main() -> None:
    end_with_agent()
    for number in SIGNALS:
        # a server ends when its workers have left: a worker that saves may need it until then
        signal.signal(number, signal.SIG_IGN)
    run_dir, index = Path(sys.argv[1]), int(os.environ["LEYDEN_SERVER"])
    run_as_child(f"server-{index}", lambda: _serve(run_dir, index))


def _serve(run_dir: Path, index: int) -> None:
    config = load(run_dir)
    make_importable(config)
    from ..servers.server import serve

    serve(config, index)


if __name__ == "__main__":
    main()
