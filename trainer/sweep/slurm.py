"""Submission of trials to Slurm: one job for each, or one for all trials of a hopping run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config.schema import load
from ..runs.folder import pipeline_of


@dataclass(frozen=True)
class SubmittedTrials:
    """Jobs that Slurm has accepted."""

    jobs: dict[Path, str] = field(default_factory=dict)
    """Id of the job by the trial's folder."""
    logs: list[Path] = field(default_factory=list)
    """Output files of the jobs of hopping runs."""


def submit_trials(sweep: Path, trials: Mapping[int, Path], verb: str) -> SubmittedTrials:
    """Submit all trials, one job array for each set of equal resources.

    Args:
        sweep: folder of the sweep.
        trials: run folders by number, including all trials of each hopping run. The task of an array has the number of
            its trial, or of the first trial of its hopping run.
        verb: train | resume.

    Raises:
        ConfigError: Slurm rejects one of them; then none is left in the queue.
    """
    if not trials:
        return SubmittedTrials()
    from ..config.job import JobSpec
    from ..launch.slurm.arrays import submit_arrays
    from ..launch.slurm.batch_script import log_path

    run_of = {trial: pipeline_of(trial) or trial for trial in trials.values()}
    number_of: dict[Path, int] = {}
    for number, trial in trials.items():
        number_of.setdefault(run_of[trial], number)
    jobs = {number: JobSpec(load(run), run, verb) for run, number in number_of.items()}
    ids = {jobs[number].run_dir: job_id for number, job_id in submit_arrays(sweep, jobs).items()}
    logs = [log_path(job) for job in jobs.values() if job.config.pipeline is not None]
    return SubmittedTrials({trial: ids[run] for trial, run in run_of.items()}, logs)
