"""Submission of a sweep's trials to Slurm: those with the same options are a job array, or several of MaxArraySize."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ...base.atomic_file import write_atomically
from ...base.errors import ConfigError, refuse
from ...config.job import JobSpec
from ...runs.slurm import dequeue, max_array_size
from .batch_script import array_script, folder, log_path, options, script_path
from .submit import record_submission, sbatch, write_script


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
    by_options: dict[tuple[object, ...], list[int]] = {}
    for number, job in trials.items():
        slurm = job.config.topology.slurm
        by_options.setdefault((*options(job.config), slurm.job_name, slurm.array_parallelism), []).append(number)
    jobs: dict[int, str] = {}
    try:
        with ExitStack() as written:
            for job in trials.values():
                written.enter_context(write_script(job, f"{sweep.name}-{job.run_dir.name}"))
            for numbers in by_options.values():
                for each in _submit_arrays(sweep, {number: trials[number] for number in numbers}):
                    jobs.update(each)
    except ConfigError:
        for job_id in {job_id.partition("_")[0] for job_id in jobs.values()}:
            dequeue(job_id)
        raise
    for number, job_id in jobs.items():
        record_submission(trials[number], job_id)
    return jobs


def _submit_arrays(sweep: Path, trials: Mapping[int, JobSpec]) -> Iterator[dict[int, str]]:
    """Job ids of trials with the same options, of each array as soon as it is submitted.

    Raises:
        ConfigError: Slurm rejects one, or the user's dependency has alternatives where the arrays wait for each other.
    """
    # 0: this Slurm has no arrays
    size = (max_array_size() or 1) if len(trials) > 1 else 1
    blocks: dict[int, dict[int, JobSpec]] = {}
    for number, job in trials.items():
        blocks.setdefault(number // size, {})[number] = job
    slurm = next(iter(trials.values())).config.topology.slurm
    # array_parallelism holds for one array: for it to hold over all of them, each waits for the one before
    in_turn = slurm.array_parallelism is not None and len(blocks) > 1
    if in_turn and "?" in (slurm.dependency or ""):
        text = "with array_parallelism the arrays of a sweep wait for each other, which `?` does not allow"
        raise refuse("topology.slurm.dependency", text, slurm.dependency, "conditions that are separated by commas")
    wait: list[str] = []
    for block, jobs in blocks.items():
        submitted = _submit(sweep, jobs, block * size, wait)
        yield submitted
        if in_turn:
            array_id = next(iter(submitted.values())).partition("_")[0]
            wait = [f"--dependency={','.join(filter(None, (slurm.dependency, f'afterany:{array_id}')))}"]


def _submit(sweep: Path, trials: Mapping[int, JobSpec], offset: int, wait: Sequence[str]) -> dict[int, str]:
    """
    Args:
        offset: number of the trial that is task 0.
        wait: more options for sbatch.
    """
    numbers, (first, *others) = list(trials), list(trials.values())
    if not others:
        return {numbers[0]: sbatch(script_path(first), first.config, *wait)}
    array_id = sbatch(_array_script(sweep, trials, offset), first.config, *wait)
    return {number: f"{array_id}_{number - offset}" for number in numbers}


def _array_script(sweep: Path, trials: Mapping[int, JobSpec], offset: int) -> Path:
    """Write the batch script of an array. Slurm's own output of a task goes into the log of its trial."""
    logs = folder(sweep) / (str(offset) if offset else "")
    logs.mkdir(parents=True, exist_ok=True)
    for number, job in trials.items():
        link = logs / f"{number - offset}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(log_path(job))
    scripts = {number - offset: script_path(job) for number, job in trials.items()}
    first = next(iter(trials.values())).config
    slurm = first.topology.slurm
    script = array_script(slurm.job_name or sweep.name, logs, scripts, options(first), slurm.array_parallelism)
    path = logs / f"array-{next(iter(trials))}.sh"
    write_atomically(path, script)
    return path
