"""Trials of a sweep that Slurm starts: each a job of its own, or all of a pipeline together one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .config import load
from .pipeline.membership import pipeline_of


@dataclass(frozen=True)
class Queued:
    """What Slurm has taken."""

    jobs: dict[Path, str] = field(default_factory=dict)
    """By the trial's folder, the number of the job that trains it."""
    logs: list[Path] = field(default_factory=list)
    """Of the jobs of pipelines."""


def queue_runs(sweep: Path, trials: Mapping[int, Path], verb: str) -> Queued:
    """Submit all, in as few calls as there are different wishes.

    Args:
        sweep: its folder.
        trials: run folders by number, of a pipeline all that it is to train. The task of an array bears the number of
            its trial, or of the first one of its pipeline.
        verb: train | resume.

    Raises:
        ConfigError: Slurm does not take one of them; then none is left in the queue.
    """
    if not trials:
        return Queued()
    from .launch.attempt import Job
    from .launch.slurm.script import log_path
    from .launch.slurm.trials import queue_trials

    run_of = {trial: pipeline_of(trial) or trial for trial in trials.values()}
    number_of: dict[Path, int] = {}
    for number, trial in trials.items():
        number_of.setdefault(run_of[trial], number)
    jobs = {number: Job(load(run), run, verb, None) for run, number in number_of.items()}
    ids = {jobs[number].run_dir: job_id for number, job_id in queue_trials(sweep, jobs).items()}
    logs = [log_path(job) for job in jobs.values() if job.config.pipeline is not None]
    return Queued({trial: ids[run] for trial, run in run_of.items()}, logs)
