"""The script of a job: what sbatch is told, then the agents, one a node, then whether to queue the job again."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...config import Config
from ..attempt import Job


def folder(run_dir: Path) -> Path:
    """What Slurm's side of a run is written into."""
    return run_dir / "slurm"


def script_path(job: Job) -> Path:
    return folder(job.run_dir) / ("eval.sh" if job.verb == "eval" else "job.sh")


def log_path(job: Job) -> Path:
    """What the job prints, every start of it after the one before."""
    return script_path(job).with_suffix(".log")


def options(config: Config) -> tuple[str, ...]:
    """What a job asks of Slurm, apart from its name and where its output goes; the user's own words last: they win."""
    asked = [f"--{name}={shlex.quote(str(value))}" for name, value in _asked(config) if value is not None]
    return (*asked, "--requeue", "--open-mode=append", *config.topology.slurm.sbatch)


def _asked(config: Config) -> Iterator[tuple[str, object]]:
    topology, slurm = config.topology, config.topology.slurm
    gpus = f"gpu:{topology.devices_per_node}" if topology.device.kind == "cuda" else None
    yield "nodes", topology.nodes
    yield "ntasks-per-node", 1
    yield "cpus-per-task", _cores(config)
    yield "gres", gpus if slurm.gres is None else slurm.gres
    yield from (("partition", slurm.partition), ("account", slurm.account), ("qos", slurm.qos))
    yield from (("constraint", slurm.constraint), ("exclude", slurm.exclude), ("time", slurm.time_min))
    # to the steps, which the agents are, and not to the shell around them
    yield "signal", f"TERM@{slurm.signal_s}"


def _cores(config: Config) -> int | None:
    host = config.topology.host
    return host.sockets * host.cores_per_socket if host.sockets and host.cores_per_socket else None


def job_script(job: Job, name: str, python: str = sys.executable, environment: Mapping[str, str] = os.environ) -> str:
    """What sbatch is given for one run.

    Args:
        name: of the job.
        python: the interpreter that this command runs in.
        environment: this command's; a cluster may not pass it on by itself.
    """
    words = [python, "-m", "leyden.trainer.launch.slurm.agent", str(job.run_dir), job.verb, str(job.checkpoint or "")]
    again = [python, "-m", "leyden.trainer.launch.slurm.requeue", str(job.run_dir), job.verb]
    lines = [
        *_head(name, log_path(job), options(job.config)),
        *(f"export {key}={shlex.quote(environment[key])}" for key in ("PYTHONPATH",) if environment.get(key)),
        *job.config.topology.slurm.setup,
        "# Slurm tells this shell to end as well as the agents: it ends after them",
        "trap : TERM",
        "# srun does not take over --cpus-per-task by itself; which worker runs on which core, Leyden decides",
        "code=0",
        f"srun --nodes={job.config.topology.nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none \\",
        '    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \\',
        f"    {shlex.join(words)} || code=$?",
        f'exec {shlex.join(again)} "$code"',
    ]
    return "\n".join(lines) + "\n"


def array_script(name: str, logs: Path, scripts: Mapping[int, Path], asked: tuple[str, ...]) -> str:
    """What sbatch is given for several runs that ask the same of it.

    Args:
        name: of the job.
        logs: a folder; the task of a trial writes into its file NUMBER.log.
        scripts: of each trial, by its number.
        asked: the options that all share.
    """
    numbers = ",".join(map(str, scripts))
    lines = [
        *_head(name, logs / "%a.log", (*asked, f"--array={numbers}")),
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{number}) exec bash {shlex.quote(str(path))} ;;" for number, path in scripts.items()),
        "esac",
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, log: Path, asked: tuple[str, ...]) -> list[str]:
    # in the name of a file % begins a pattern of Slurm's; the last part alone may hold one of ours
    output = f"{str(log.parent).replace('%', '%%')}/{log.name}"
    own = (f"--job-name={shlex.quote(name)}", f"--output={shlex.quote(output)}")
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*own, *asked))]
