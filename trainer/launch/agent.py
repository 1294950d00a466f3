"""Leyden's agent: worker group after worker group of a run, in the command's own process.

An agent of our own: torchrun's (torch 2.13) starts equal ranks and restarts them. It knows no parameter servers, no
step that workers agree to stop at, no root cause on another node, and no workers that train different models (hopping).
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from ..base.signals import restore_handlers
from ..runs.checkpoints import intact, saved_checkpoints
from ..runs.exit_codes import EXIT_CODES, REFUSED
from ..runs.failure_report import report_failure
from ..runs.folder import remove_unstarted
from ..runs.summary import mark_failed, mark_refused, read_summary
from .agent_group import AgentGroup, SingleNode
from .root_cause import Failure, root_cause
from .signals import ReceivedSignals
from .worker_group import RunResult, WorkerSpec


def launch(job: WorkerSpec) -> int:
    """Start the processes of a run on this machine. Returns the exit code of `start`.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
    """
    signals = ReceivedSignals()
    previous = signals.install_handlers()
    try:
        return run_with_restarts(job, signals, SingleNode())
    finally:
        restore_handlers(previous)


def run_with_restarts(job: WorkerSpec, signals: ReceivedSignals, agents: AgentGroup) -> int:
    """Run worker groups on all nodes, one after another while they fail and restarts are left. Returns the exit code.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
    """
    max_restarts = job.config.topology.max_restarts if job.verb != "eval" else 0
    first, before, reason = job, _write_times(job.run_dir), ""
    for restart_count in count():
        node, store = agents.start_workers(restart_count, job, reason)
        group = job.worker_group(job, restart_count, node, store, agents, signals)
        failure = failure_of(job, agents.gather_result(group.run()))
        if failure is None:
            code = EXIT_CODES.get(_status(job), 0) or _failed_trials(job)
            agents.end_run(code)
            return code
        if failure.refused:
            return _end_refused(job, failure.message, agents)
        if failure.users_mistake:
            agents.end_run(2, failure.message, users_mistake=True)
            remove_unstarted(job.run_dir, job.verb)
            raise failure.as_mistake()
        if restart_count == max_restarts or failure.lasting or signals.received:
            code = signals.exit_code if signals.received else 1
            _report(job, failure)
            agents.end_run(code, str(failure))
            return code
        job = replace(first, verb="resume", checkpoint=_restart_checkpoint(first, before))
        start = job.checkpoint or next(iter(intact(job.run_dir)), None)
        from_where = start.name if start else "its beginning"
        reason = f"{failure}; restart {restart_count + 1} of {max_restarts} from {from_where}"
        print(reason, file=sys.stderr, flush=True)
    raise AssertionError("the loop ends by a return")


def _end_refused(job: WorkerSpec, message: str, agents: AgentGroup) -> int:
    """End of a run that the preflight refuses: without a restart, since the machines would be the same."""
    print(message, file=sys.stderr, flush=True)
    remove_unstarted(job.run_dir, job.verb)
    if job.verb == "resume":
        mark_refused(job.run_dir, message)
    agents.end_run(REFUSED, message)
    return REFUSED


def failure_of(job: WorkerSpec, result: RunResult) -> Failure | None:
    """Why a worker group did not bring the run to its end; None where it did."""
    if result.cause is not None:
        return Failure("", -1, result.cause)
    none_succeeded = job.config.elastic and not any(e.code == 0 for e in result.exits if e.role.kind == "worker")
    if result.failed and _all_workers_ended(job, result) and _status(job) in EXIT_CODES:
        return None  # an agent was silent for so long that another took it for lost, when nothing was left to lose
    if result.failed or none_succeeded:
        return root_cause(result.exits)
    # elastic: a late worker that failed may have been the last to write the summary
    if job.config.elastic or _status(job) in EXIT_CODES:
        return None
    return Failure("", -1, "the workers ended before the training did")


def _all_workers_ended(job: WorkerSpec, result: RunResult) -> bool:
    """Whether every worker of the run has ended by itself, without an error."""
    codes = [process_exit.code for process_exit in result.exits if process_exit.role.kind == "worker"]
    return len(codes) == job.config.topology.workers and not any(codes)


def _failed_trials(job: WorkerSpec) -> int:
    """1 where a pipeline has ended and one of its trials has failed."""
    trials = [] if job.config.pipeline is None else job.config.pipeline.folders(job.run_dir)
    return int(any(read_summary(trial).get("status") == "failed" for trial in trials))


def _status(job: WorkerSpec) -> str:
    return "done" if job.verb == "eval" else read_summary(job.run_dir).get("status", "")


def _report(job: WorkerSpec, failure: Failure) -> None:
    # first: the terminal may be a file on a full disk
    if job.verb != "eval":
        mark_failed(job.run_dir, failure.message, failure.rank)
    report_failure(job.run_dir, job.verb, str(failure), failure.traceback)


def _write_times(run_dir: Path) -> dict[Path, int]:
    """Times at which the run's checkpoints were written."""
    return {path: path.stat().st_mtime_ns for path in saved_checkpoints(run_dir)}


def _restart_checkpoint(first: WorkerSpec, before: dict[Path, int]) -> Path | None:
    """The checkpoint to restart from; None: the newest whole one.

    Where the user resumed from an older checkpoint, newer ones from before belong to a history that was given up.
    """
    if first.checkpoint is None:
        return None
    written = _write_times(first.run_dir)
    fresh = [path for path in intact(first.run_dir) if path in written and before.get(path) != written[path]]
    return first_usable(fresh) or first.checkpoint


def first_usable(paths: Sequence[Path]) -> Path | None:
    """The first checkpoint that is not damaged: a worker goes on from the one that it is given, or from none."""
    if not paths:
        return None
    # not at the top: it imports torch
    from ..core.checkpoints.checkpoint_io import first_readable

    found = first_readable(paths)
    return found and found[0]
