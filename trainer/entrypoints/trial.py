"""A trial of a sweep, which ends with it: `python -m leyden.trainer.entrypoints.trial RUN_DIR SWEEP_PID VERB`."""

import signal
import sys
from collections.abc import Sequence

from ..base.process import end_with_parent
from ..config.job import JobSpec
from ..runs.failure_report import report_in_one_line
from .fork_server import prepare
from .start import start_job


def main(argv: Sequence[str], sweep: int) -> int:
    """Run a frozen config. Returns its exit code, 2 for a mistake that only building its parts could show."""
    # SIGTERM, where workers get SIGKILL: a trial can still save a checkpoint
    if not end_with_parent(sweep, signal.SIGTERM):
        return 143
    try:
        job = JobSpec.from_argv(argv)
        prepare(job.config)
        if job.config.pipeline is None:
            report_in_one_line()
        return start_job(job)
    except ValueError as error:
        print(f"leyden: this trial was not started: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main([sys.argv[1], sys.argv[3]], int(sys.argv[2])))
