"""The trials of a sweep on their way into Slurm's queue: those that ask the same of it are one job array."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ...errors import ConfigError
from ...run_folder import write_whole
from ..attempt import Job
from .commands import cancel
from .queue import note, submit, written_script
from .script import array_script, folder, log_path, options, script_path


def queue_trials(sweep: Path, trials: Mapping[int, Job]) -> dict[int, str]:
    """Submit all trials.

    Args:
        sweep: the folder of the sweep, which holds those of the trials.
        trials: by their numbers.

    Returns:
        The number of each trial's job, such as 123_4 for the task of an array.

    Raises:
        ConfigError: Slurm does not take one of them; then none is left in the queue.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, job in trials.items():
        alike.setdefault(options(job.config), []).append(number)
    jobs: dict[int, str] = {}
    try:
        with ExitStack() as written:
            for job in trials.values():
                written.enter_context(written_script(job, f"{sweep.name}-{job.run_dir.name}"))
            for numbers in alike.values():
                jobs.update(_submitted(sweep, {number: trials[number] for number in numbers}))
    except ConfigError:
        for job_id in {job_id.partition("_")[0] for job_id in jobs.values()}:
            cancel(job_id)
        raise
    for number, job_id in jobs.items():
        note(trials[number], job_id)
    return jobs


def _submitted(sweep: Path, trials: Mapping[int, Job]) -> dict[int, str]:
    numbers, (first, *others) = list(trials), list(trials.values())
    if not others:
        return {numbers[0]: submit(script_path(first), first.config)}
    array_id = submit(_array(sweep, trials, numbers), first.config)
    return {number: f"{array_id}_{number}" for number in numbers}


def _array(sweep: Path, trials: Mapping[int, Job], numbers: Sequence[int]) -> Path:
    """Write the script of an array. What Slurm itself has to say of a task goes where the task's own words go."""
    logs = folder(sweep)
    logs.mkdir(exist_ok=True)
    for number, job in trials.items():
        link = logs / f"{number}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(log_path(job))
    scripts = {number: script_path(job) for number, job in trials.items()}
    path = logs / f"array-{numbers[0]}.sh"
    write_whole(path, array_script(sweep.name, logs, scripts, options(trials[numbers[0]].config)))
    return path
