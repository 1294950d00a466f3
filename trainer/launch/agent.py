"""Leyden's agent: attempt after attempt at a run, in the command's own process."""

import signal
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType

from ..checkpoint_names import saved
from ..config import Config
from ..signals import give_back, take_over
from ..summary import last_good_checkpoint, mark_failed, read_summary
from .attempt import Attempt, Job
from .blame import Failure, blamed
from .elastic import ElasticAttempt
from .roles import Place
from .worker import EXIT_CODES, remove_unstarted


def launch(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """Start the processes of a run, again where one fails and restarts are left. Returns the exit code of `start`.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
    """
    received: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    kept = take_over(note)
    try:
        return _attempts(Job(config, run_dir, verb, checkpoint), received)
    finally:
        give_back(kept)


def _attempts(job: Job, received: list[signal.Signals]) -> int:
    restarts = job.config.topology.max_restarts if job.verb != "eval" else 0
    kind = ElasticAttempt if job.config.elastic else Attempt
    first, before = job, _times(job.run_dir)
    for number in count():
        ended = kind(job, number, Place(), received).run()
        failure = blamed(ended.exits) if ended.failed else _unfinished(job)
        if failure is None:
            return EXIT_CODES.get(_status(job), 0)
        if failure.users_mistake:
            remove_unstarted(job.run_dir, job.verb)
            raise ValueError(failure.message)
        if number == restarts or received:
            return _failed(job, failure, received)
        job = replace(first, verb="resume", checkpoint=_restart_point(first, before))
        point = job.checkpoint or next(iter(saved(job.run_dir)), None)
        start = point.name if point else "its beginning"
        print(f"{failure}; restart {number + 1} of {restarts} from {start}", file=sys.stderr, flush=True)
    raise AssertionError("attempts are counted")


def _status(job: Job) -> str:
    return "done" if job.verb == "eval" else read_summary(job.run_dir).get("status", "")


def _unfinished(job: Job) -> Failure | None:
    """A run whose workers left in good order, but not at its end."""
    # elastic: one that came late, and died, may have been the last to write the summary
    if job.config.elastic or _status(job) in EXIT_CODES:
        return None
    return Failure("the run", -1, "its workers ended before the training did")


def _failed(job: Job, failure: Failure, received: list[signal.Signals]) -> int:
    if failure.traceback:
        print(failure.traceback, file=sys.stderr)
    print(f"{failure}\n{last_good_checkpoint(job.run_dir)}", file=sys.stderr)
    mark_failed(job.run_dir, failure.message, failure.rank)
    if received:
        return 130 if received[0] is signal.SIGINT else 143
    return 1


def _times(run_dir: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in saved(run_dir)}


def _restart_point(first: Job, before: dict[Path, int]) -> Path | None:
    """The checkpoint to start again from; None: the newest whole one.

    Where the user went back to an older checkpoint, the newer ones belong to a history that was given up.
    """
    if first.checkpoint is None:
        return None
    fresh = [path for path, written in _times(first.run_dir).items() if before.get(path) != written]
    return fresh[0] if fresh else first.checkpoint
