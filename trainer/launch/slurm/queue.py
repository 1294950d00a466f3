"""A run's way into Slurm's queue."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from ...config import Config, trials_in
from ...errors import ConfigError, refuse
from ...origin import shown
from ...run_folder import write_whole
from ...slurm_jobs import STOP_REQUESTED, SUBMITTED, answer, known, submission_of
from ..attempt import Job
from .commands import cancel, reason_of
from .refusals import NEVER, never_starts, no_slurm, refused
from .script import folder, job_script, log_path, script_path

REQUEUES = "requeues.json"


def queue(job: Job) -> int:
    """Submit a run and say how it is followed. Returns the exit code, 0.

    Raises:
        ConfigError: Slurm does not take the job; nothing of it is left.
    """
    with written_script(job, job.run_dir.name):
        number = submit(script_path(job), job.config)
    note(job, number)
    tell(job, number)
    return 0


def refuse_second(run_dir: Path) -> None:
    """Raise ConfigError where a job that trains this run, or a trial of this pipeline, is in Slurm's queue: two would
    write over each other."""
    found = map(submission_of, (run_dir, *trials_in(run_dir)))
    submitted = {one.job_id: one.run_dir for one in found if one is not None}
    for job in known(submitted).values():
        if job.active:
            run = submitted[job.id]
            which = f"its job {job.id}" if run == run_dir else f"job {job.id}, which runs {shown(run)},"
            text = f"{which} is in Slurm's queue, {job.state}"
            raise refuse("RUN", text, shown(run_dir), f"leyden stop {shown(run)}, or scancel {job.id}, and then again")


@contextmanager
def written_script(job: Job, name: str) -> Iterator[None]:
    """Write what sbatch is to be given; where it is not taken, have things as they were.

    Args:
        name: of the job.
    """
    path = script_path(job)
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    write_whole(path, job_script(_as_in_job(job), name))
    try:
        yield
    except ConfigError:
        if before is not None:
            write_whole(path, before)
        else:
            path.unlink()
            with suppress(OSError):
                path.parent.rmdir()
        raise


def _as_in_job(job: Job) -> Job:
    """A job may start several times, and removes no folder into which Slurm writes: to it every run is one to go on."""
    return Job(job.config, job.run_dir, "eval" if job.verb == "eval" else "resume", job.checkpoint)


def submit(script: Path, config: Config) -> str:
    """Hand a script to sbatch. Returns the job's number.

    Raises:
        ConfigError: it is not taken, or taken and never to be started.
    """
    try:
        done = answer("sbatch", "--parsable", str(script))
    except FileNotFoundError:
        raise no_slurm("sbatch") from None
    if done.returncode:
        raise refused(done.stderr, config)
    if done.stderr:
        print(done.stderr.strip(), flush=True)
    number = done.stdout.strip().split(";")[0]
    reason = reason_of(number)
    if reason in NEVER:
        cancel(number)
        raise never_starts(reason, config)
    return number


def note(job: Job, number: str) -> None:
    """Write down which job trains the run, and forget what was asked of the one before."""
    if job.verb == "eval":
        return
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    write_whole(job.run_dir / SUBMITTED, json.dumps({"job_id": number, "submitted_at": now}) + "\n")
    (job.run_dir / STOP_REQUESTED).unlink(missing_ok=True)
    (folder(job.run_dir) / REQUEUES).unlink(missing_ok=True)


def tell(job: Job, number: str) -> None:
    """Print the job's number and how it is followed."""
    nodes = job.config.topology.nodes
    print(f"job {number} is queued ({nodes} node{'s' if nodes > 1 else ''}); follow it with")
    print(f"  squeue --jobs {number}\n  tail -F {shown(log_path(job))}")
    if job.verb != "eval":
        print(f"  leyden status {shown(job.run_dir)}", flush=True)
