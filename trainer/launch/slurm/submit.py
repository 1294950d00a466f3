"""Submission of a run to Slurm."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from ...base.atomic_file import write_atomically
from ...base.errors import ConfigError, refuse
from ...base.paths import shown
from ...config.job import JobSpec
from ...config.schema import Config
from ...runs.frozen import trials_in
from ...runs.slurm import (
    STOP_REQUESTED,
    SUBMITTED,
    comment_of,
    dequeue,
    folder_of_script,
    jobs_by_id,
    reason_of,
    run_command,
    submission_of,
)
from .batch_script import folder, job_script, log_path, script_path
from .errors import NEVER_STARTS, never_starts_error, no_pyxis_error, no_slurm_error, sbatch_error

REQUEUES = "requeues.json"


def submit(job: JobSpec) -> int:
    """Submit a run, and print how to follow it. Returns the exit code, 0.

    Raises:
        ConfigError: Slurm rejects the job; nothing of it is left.
    """
    with written_script(job, job.run_dir.name):
        job_id = sbatch(script_path(job), job.config)
    record_submission(job, job_id)
    _print_submission(job, job_id)
    return 0


def refuse_if_queued(run_dir: Path) -> None:
    """Raise ConfigError where a job of this run, or of a trial of this pipeline, is in Slurm's queue.

    Two jobs of one run would overwrite each other's files.
    """
    found = map(submission_of, (run_dir, *trials_in(run_dir)))
    submitted = {one.job_id: one.run_dir for one in found if one is not None}
    for job in jobs_by_id(submitted).values():
        if job.active:
            run = submitted[job.id]
            which = f"its job {job.id}" if run == run_dir else f"job {job.id}, which runs {shown(run)},"
            text = f"{which} is in Slurm's queue, {job.state}"
            raise refuse("RUN", text, shown(run_dir), f"leyden stop {shown(run)}, or scancel {job.id}, and then again")


@contextmanager
def written_script(job: JobSpec, name: str) -> Iterator[None]:
    """Write the batch script; where sbatch rejects it, restore the previous one.

    Args:
        name: of the job.
    """
    path = script_path(job)
    before = path.read_text() if path.exists() else None
    script = job_script(_as_in_job(job), name)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, script)
    try:
        yield
    except ConfigError:
        if before is not None:
            write_atomically(path, before)
        else:
            path.unlink()
            with suppress(OSError):
                path.parent.rmdir()
        raise


def _as_in_job(job: JobSpec) -> JobSpec:
    """The job with the verb that its script has."""
    # resume, not train: a job may be started several times, and must not remove the folder that Slurm writes into
    return JobSpec(job.config, job.run_dir, "eval" if job.verb == "eval" else "resume", job.checkpoint)


def _comment(script: Path, config: Config) -> list[str]:
    """The option that names the run in the job's comment, unless the user has one of his own there."""
    slurm = config.topology.slurm
    own = slurm.comment is not None or any(option.startswith("--comment") for option in slurm.sbatch)
    return [] if own else [f"--comment={comment_of(folder_of_script(script))}"]


def sbatch(script: Path, config: Config, *more: str) -> str:
    """Submit a batch script. Returns the job id.

    Args:
        more: options that take precedence over the script's.

    Raises:
        ConfigError: it is rejected, or accepted and would never start.
    """
    image = config.topology.slurm.container_image
    try:
        # of the nodes as well: sites install pyxis for all or none
        if image is not None and "--container-image" not in run_command("srun", "--help").stdout:
            raise no_pyxis_error(image)
        done = run_command("sbatch", "--parsable", *more, *_comment(script, config), str(script))
    except FileNotFoundError:
        raise no_slurm_error("sbatch") from None
    if done.returncode:
        raise sbatch_error(done.stderr, config)
    if done.stderr:
        print(done.stderr.strip(), flush=True)
    job_id = done.stdout.strip().split(";")[0]
    reason = reason_of(job_id)
    if reason in NEVER_STARTS:
        dequeue(job_id)
        raise never_starts_error(reason, config)
    return job_id


def record_submission(job: JobSpec, job_id: str) -> None:
    """Record the run's job, and remove the stop request and the requeue record of the previous one."""
    if job.verb == "eval":
        return
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    write_atomically(job.run_dir / SUBMITTED, json.dumps({"job_id": job_id, "submitted_at": now}) + "\n")
    (job.run_dir / STOP_REQUESTED).unlink(missing_ok=True)
    (folder(job.run_dir) / REQUEUES).unlink(missing_ok=True)


def _print_submission(job: JobSpec, job_id: str) -> None:
    nodes = job.config.topology.nodes
    print(f"job {job_id} is queued ({nodes} node{'s' if nodes > 1 else ''}); follow it with")
    print(f"  squeue --jobs {job_id}\n  tail -F {shown(log_path(job))}")
    if job.verb != "eval":
        print(f"  leyden status {shown(job.run_dir)}", flush=True)
