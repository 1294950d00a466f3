"""Submission of a sweep's trials to Slurm: those with the same options are one job array."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ...base.atomic_file import write_atomically
from ...base.errors import ConfigError
from ...runs.slurm import dequeue
from ..worker_group import JobSpec
from .batch_script import array_script, folder, log_path, options, script_path
from .submit import record_submission, sbatch, written_script


def submit_arrays(sweep: Path, trials: Mapping[int, JobSpec]) -> dict[int, str]:
    """Submit all trials.

    Args:
        sweep: the folder of the sweep, which holds those of the trials.
        trials: by their numbers.

    Returns:
        Job id of each trial, such as 123_4 for the task of an array.

    Raises:
        ConfigError: Slurm rejects one of them; then none is left in the queue.
    """
    by_options: dict[tuple[str, ...], list[int]] = {}
    for number, job in trials.items():
        by_options.setdefault(options(job.config), []).append(number)
    jobs: dict[int, str] = {}
    try:
        with ExitStack() as written:
            for job in trials.values():
                written.enter_context(written_script(job, f"{sweep.name}-{job.run_dir.name}"))
            for numbers in by_options.values():
                jobs.update(_submitted(sweep, {number: trials[number] for number in numbers}))
    except ConfigError:
        for job_id in {job_id.partition("_")[0] for job_id in jobs.values()}:
            dequeue(job_id)
        raise
    for number, job_id in jobs.items():
        record_submission(trials[number], job_id)
    return jobs


def _submitted(sweep: Path, trials: Mapping[int, JobSpec]) -> dict[int, str]:
    numbers, (first, *others) = list(trials), list(trials.values())
    if not others:
        return {numbers[0]: sbatch(script_path(first), first.config)}
    array_id = sbatch(_array_script(sweep, trials, numbers), first.config)
    return {number: f"{array_id}_{number}" for number in numbers}


def _array_script(sweep: Path, trials: Mapping[int, JobSpec], numbers: Sequence[int]) -> Path:
    """Write the batch script of an array. Slurm's own output of a task goes into the log of its trial."""
    logs = folder(sweep)
    logs.mkdir(exist_ok=True)
    for number, job in trials.items():
        link = logs / f"{number}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(log_path(job))
    scripts = {number: script_path(job) for number, job in trials.items()}
    path = logs / f"array-{numbers[0]}.sh"
    write_atomically(path, array_script(sweep.name, logs, scripts, options(trials[numbers[0]].config)))
    return path
