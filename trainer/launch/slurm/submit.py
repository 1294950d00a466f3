"""Submission of a run to Slurm."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ...base.atomic_file import write_atomically
from ...base.errors import ConfigError, refuse
from ...base.paths import shorten_path
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
    with _temporary_script(job) if job.is_evaluation else write_script(job, job.run_dir.name) as script:
        job_id = sbatch(script, job.config, of=job.run_dir)
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
            which = f"its job {job.id}" if run == run_dir else f"job {job.id}, which runs {shorten_path(run)},"
            text = f"{which} is in Slurm's queue, {job.state}"
            raise refuse(
                "RUN",
                text,
                shorten_path(run_dir),
                f"leyden stop {shorten_path(run)}, or scancel {job.id}, and then again",
            )


@contextmanager
def _temporary_script(job: JobSpec) -> Iterator[Path]:
    """The script of an evaluation, which writes nothing into the run; sbatch takes a copy of it."""
    with TemporaryDirectory(prefix="leyden-") as temporary:
        script = Path(temporary) / "eval.sh"
        script.write_text(job_script(_as_in_job(job), job.run_dir.name))
        yield script


@contextmanager
def write_script(job: JobSpec, name: str) -> Iterator[Path]:
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
        yield path
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


def _comment(folder: Path, config: Config) -> list[str]:
    """The option that names the run in the job's comment, unless the user has one of his own there."""
    slurm = config.topology.slurm
    own = slurm.comment is not None or any(option.startswith("--comment") for option in slurm.sbatch)
    return [] if own else [f"--comment={comment_of(folder)}"]


def sbatch(script: Path, config: Config, *more: str, of: Path | None = None) -> str:
    """Submit a batch script. Returns the job id.

    Args:
        more: options that take precedence over the script's.
        of: run that it is of; None: the one in whose folder it lies.

    Raises:
        ConfigError: it is rejected, or accepted and would never start.
    """
    image, comment = config.topology.slurm.container_image, _comment(of or folder_of_script(script), config)
    try:
        # of the nodes as well: sites install pyxis for all or none
        if image is not None and "--container-image" not in run_command("srun", "--help").stdout:
            raise no_pyxis_error(image)
        done = run_command("sbatch", "--parsable", *more, *comment, str(script))
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
    nodes, log = job.config.topology.nodes, Path(str(log_path(job)).replace("%j", job_id))
    print(f"job {job_id} is queued ({nodes} node{'s' if nodes > 1 else ''}); follow it with")
    print(f"  squeue --jobs {job_id}\n  tail -F {shorten_path(log)}")
    if job.verb != "eval":
        print(f"  leyden status {shorten_path(job.run_dir)}", flush=True)
