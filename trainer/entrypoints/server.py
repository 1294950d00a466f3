"""A parameter server: child of the agent (leyden.trainer.entrypoints.server RUN_DIR VERB [CHECKPOINT]), or a process
that another program has started."""

import os
import signal
import sys
from collections.abc import Callable

from ..base.signals import SIGNALS, StopRequest, restore_handlers
from ..base.system_errors import system_errors
from ..config.job import JobSpec
from ..config.targets import make_importable
from ..launch.child import end_with_agent, run_as_child
from ..runs.exit_codes import EXIT_CODES
from .worker import report_failure


def main() -> None:
    end_with_agent()
    for number in SIGNALS:
        # it ends with its last worker: one that saves a checkpoint needs it until then
        signal.signal(number, signal.SIG_IGN)
    index = int(os.environ["LEYDEN_SERVER"])
    run_as_child(f"server-{index}", lambda: _serve(JobSpec.from_argv(sys.argv[1:]), index))


def serve_in_process(
    job: JobSpec, index: int, listens: bool, reports: Callable[[Exception], bool], stop_request: StopRequest
) -> int:
    """Serve in this process until the last worker has left. Returns the exit code, as `run_in_process` does."""
    previous = stop_request.listen() if listens else {}
    try:
        _serve(job, index)
    except Exception as error:
        if reports(error):
            report_failure(error, job, rank=-1)
        return 1
    finally:
        restore_handlers(previous)
    return EXIT_CODES["done" if stop_request.signal is None else "preempted"]


def _serve(job: JobSpec, index: int) -> None:
    make_importable(job.config)
    from ..strategies.param_server.server import serve

    with system_errors(job.run_dir):
        serve(job.config, job.run_dir, index, records=not job.is_evaluation)


if __name__ == "__main__":
    main()
