"""A parameter server, child of the agent: leyden.trainer.entrypoints.server RUN_DIR VERB [CHECKPOINT]."""

import os
import signal
import sys

from ..base.signals import SIGNALS
from ..base.system_errors import system_errors
from ..config.job import JobSpec
from ..config.targets import make_importable
from ..launch.child import end_with_agent, run_as_child


def main() -> None:
    end_with_agent()
    for number in SIGNALS:
        # it ends with its last worker: one that saves a checkpoint needs it until then
        signal.signal(number, signal.SIG_IGN)
    index = int(os.environ["LEYDEN_SERVER"])
    run_as_child(f"server-{index}", lambda: _serve(JobSpec.from_argv(sys.argv[1:]), index))


def _serve(job: JobSpec, index: int) -> None:
    make_importable(job.config)
    from ..strategies.param_server.server import serve

    with system_errors(job.run_dir):
        serve(job.config, job.run_dir, index, records=not job.is_evaluation)


if __name__ == "__main__":
    main()
