"""A parameter server, child of the agent: leyden.trainer.entrypoints.server RUN_DIR VERB [CHECKPOINT]."""

import os
import signal
import sys
from pathlib import Path

from ..base.signals import SIGNALS
from ..base.system_errors import system_errors
from ..config.schema import load
from ..config.targets import make_importable
from ..launch.child import end_with_agent, run_as_child


def main() -> None:
    end_with_agent()
    for number in SIGNALS:
        # it ends with its last worker: one that saves a checkpoint needs it until then
        signal.signal(number, signal.SIG_IGN)
    run_dir, index = Path(sys.argv[1]), int(os.environ["LEYDEN_SERVER"])
    run_as_child(f"server-{index}", lambda: _serve(run_dir, index, sys.argv[2]))


def _serve(run_dir: Path, index: int, verb: str) -> None:
    config = load(run_dir)
    make_importable(config)
    from ..strategies.param_server.server import serve

    with system_errors(run_dir):
        serve(config, run_dir, index, records=verb != "eval")


if __name__ == "__main__":
    main()
