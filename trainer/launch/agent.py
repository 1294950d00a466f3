"""Leyden's agent: attempt after attempt at a run, in the command's own process."""

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

from ..checkpoint_names import saved
from ..config import Config
from ..pipeline.attempt import PipelineAttempt
from ..signals import give_back
from ..summary import last_good_checkpoint, mark_failed, mark_refused, read_summary
from .attempt import Attempt, Ended, Job
from .blame import Failure, blamed
from .crew import Alone, Crew
from .elastic import ElasticAttempt
from .signals_heard import Signals
from .worker import EXIT_CODES, REFUSED, remove_unstarted


def launch(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """Start the processes of a run on this machine. Returns the exit code of `start`.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
    """
    signals = Signals()
    kept = signals.take_over()
    try:
        return lead(Job(config, run_dir, verb, checkpoint), signals, Alone())
    finally:
        give_back(kept)


def lead(job: Job, signals: Signals, crew: Crew) -> int:
    """Attempts at a run by all nodes together, while they fail and restarts are left. Returns the exit code.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
    """
    restarts = job.config.topology.max_restarts if job.verb != "eval" else 0
    first, before, why = job, _times(job.run_dir), ""
    for number in count():
        place, store = crew.begin(number, job, why)
        ended = crew.gathered(attempt_of(job.config)(job, number, place, store, crew, signals).run())
        failure = _failure(job, ended)
        if failure is None:
            code = EXIT_CODES.get(_status(job), 0) or _failed_trials(job)
            crew.conclude(code)
            return code
        if failure.refused:
            return _refused(job, failure.message, crew)
        if failure.users_mistake:
            crew.conclude(2, failure.message, mistake=True)
            remove_unstarted(job.run_dir, job.verb)
            raise failure.as_mistake()
        if number == restarts or signals.told:
            code = signals.exit_code if signals.told else 1
            _tell(job.run_dir, failure)
            crew.conclude(code, str(failure))
            return code
        job = replace(first, verb="resume", checkpoint=_restart_point(first, before))
        point = job.checkpoint or next(iter(saved(job.run_dir)), None)
        why = f"{failure}; restart {number + 1} of {restarts} from {point.name if point else 'its beginning'}"
        print(why, file=sys.stderr, flush=True)
    raise AssertionError("attempts are counted")


def _refused(job: Job, message: str, crew: Crew) -> int:
    """What the machines lack they will lack again: no restart."""
    print(message, file=sys.stderr, flush=True)
    remove_unstarted(job.run_dir, job.verb)
    if job.verb == "resume":
        mark_refused(job.run_dir, message)
    crew.conclude(REFUSED, message)
    return REFUSED


def attempt_of(config: Config) -> type[Attempt]:
    if config.pipeline is not None:
        return PipelineAttempt
    return ElasticAttempt if config.elastic else Attempt


def _failure(job: Job, ended: Ended) -> Failure | None:
    """What is to be said of an attempt that did not bring the run to its end."""
    if ended.gone is not None:
        return Failure("", -1, ended.gone)
    nobody = job.config.elastic and not any(e.code == 0 for e in ended.exits if e.role.kind == "worker")
    if ended.failed or nobody:
        return blamed(ended.exits)
    # elastic: one that came late, and died, may have been the last to write the summary
    if job.config.elastic or _status(job) in EXIT_CODES:
        return None
    return Failure("", -1, "the workers ended before the training did")


def _failed_trials(job: Job) -> int:
    """1 where a trial of a pipeline that came to its end has failed."""
    trials = [] if job.config.pipeline is None else job.config.pipeline.folders(job.run_dir)
    return int(any(read_summary(trial).get("status") == "failed" for trial in trials))


def _status(job: Job) -> str:
    return "done" if job.verb == "eval" else read_summary(job.run_dir).get("status", "")


def _tell(run_dir: Path, failure: Failure) -> None:
    if failure.traceback:
        print(failure.traceback, file=sys.stderr)
    print(f"{failure}\n{last_good_checkpoint(run_dir)}", file=sys.stderr, flush=True)
    mark_failed(run_dir, failure.message, failure.rank)


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
