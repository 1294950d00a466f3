"""The batch script of a job: options for sbatch, one agent a node, and the decision whether to requeue."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...base.errors import refuse
from ...base.text import control_character
from ...config.schema import Config
from ..worker_group import JobSpec


def folder(run_dir: Path) -> Path:
    """Folder of a run's batch script, log and requeue record."""
    return run_dir / "slurm"


def script_path(job: JobSpec) -> Path:
    return folder(job.run_dir) / ("eval.sh" if job.verb == "eval" else "job.sh")


def log_path(job: JobSpec) -> Path:
    """Output of the job; each start of it is appended."""
    return script_path(job).with_suffix(".log")


def options(config: Config) -> tuple[str, ...]:
    """Options for sbatch without the job's name and output. The user's own are last: they take precedence."""
    resources = [f"--{name}={shlex.quote(str(value))}" for name, value in _resources(config) if value is not None]
    return (*resources, "--requeue", "--open-mode=append", *config.topology.slurm.sbatch)


def _resources(config: Config) -> Iterator[tuple[str, object]]:
    topology, slurm = config.topology, config.topology.slurm
    gpus = f"gpu:{topology.devices_per_node}" if topology.device.kind == "cuda" else None
    yield "nodes", topology.nodes
    yield "ntasks-per-node", 1
    yield "cpus-per-task", _cores(config)
    yield "gres", gpus if slurm.gres is None else slurm.gres
    yield from (("partition", slurm.partition), ("account", slurm.account), ("qos", slurm.qos))
    yield from (("constraint", slurm.constraint), ("exclude", slurm.exclude), ("time", slurm.time_min))
    # without B: to the steps, which are the agents, and not to the batch shell
    yield "signal", f"TERM@{slurm.signal_s}"


def _cores(config: Config) -> int | None:
    host = config.topology.host
    return host.sockets * host.cores_per_socket if host.sockets and host.cores_per_socket else None


def job_script(
    job: JobSpec, name: str, python: str = sys.executable, environment: Mapping[str, str] = os.environ
) -> str:
    """Batch script of one run.

    Args:
        name: of the job.
        python: this command's interpreter.
        environment: this command's; a cluster may not export it by itself.

    Raises:
        ConfigError: a control character would end a line of the script.
    """
    _refuse_paths(("hydra.run.dir", str(log_path(job))), ("hydra.job.name", name))
    exported = {key: environment[key] for key in ("PYTHONPATH", "LEYDEN_TRUST") if environment.get(key)}
    _refuse_control_characters(("RUN", str(job.checkpoint or "")), ("python", python), *exported.items())
    agent = [
        python,
        "-P",
        "-m",
        "leyden.trainer.entrypoints.slurm_agent",
        str(job.run_dir),
        job.verb,
        str(job.checkpoint or ""),
    ]
    requeue = [python, "-P", "-m", "leyden.trainer.entrypoints.slurm_requeue", str(job.run_dir), job.verb]
    lines = [
        *_head(name, log_path(job), options(job.config)),
        *(f"export {key}={shlex.quote(value)}" for key, value in exported.items()),
        *job.config.topology.slurm.setup,
        "# Slurm sends SIGTERM to this shell as well as to the agents: it has to outlive them",
        "trap : TERM",
        "# srun does not inherit --cpus-per-task; Leyden binds workers to cores itself",
        "code=0",
        # --kill-on-bad-exit=0: agents end their own workers after a failure, and node 0 reports its root cause
        f"srun --nodes={job.config.topology.nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none \\",
        '    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \\',
        f"    {shlex.join(agent)} || code=$?",
        f'exec {shlex.join(requeue)} "$code"',
    ]
    return _joined(lines)


def array_script(name: str, logs: Path, scripts: Mapping[int, Path], shared: tuple[str, ...]) -> str:
    """Batch script of several runs with the same options: a job array.

    Args:
        name: of the job.
        logs: folder of the tasks' output, NUMBER.log.
        scripts: batch script of each trial, by its number.
        shared: the options of all.

    Raises:
        ConfigError: a control character would end a line of the script.
    """
    _refuse_paths(("hydra.sweep.dir", str(logs)), ("hydra.job.name", name))
    _refuse_control_characters(*(("hydra.sweep.subdir", str(path)) for path in scripts.values()))
    numbers = ",".join(map(str, scripts))
    lines = [
        *_head(name, logs / "%a.log", (*shared, f"--array={numbers}")),
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{number}) exec bash {shlex.quote(str(path))} ;;" for number, path in scripts.items()),
        "esac",
    ]
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    assert all(control_character(line) is None for line in lines), "a line of the script was not checked"
    return "\n".join(lines) + "\n"


def _refuse_paths(*values: tuple[str, str]) -> None:
    """
    Raises:
        ConfigError: sbatch would read a path or the job's name otherwise.
    """
    _refuse_control_characters(*values)
    for key, text in values:
        if "\\" in text:
            fault = "a job of Slurm's cannot have a backslash in its name or folder: sbatch takes it as an escape"
            raise refuse(key, fault, text, "a folder without backslashes")


def _refuse_control_characters(*values: tuple[str, str]) -> None:
    """
    Args:
        values: key or variable, and its text.
    """
    for key, text in values:
        found = control_character(text)
        if found is not None:
            fault = f"a batch script cannot hold control characters, and this holds {found}"
            raise refuse(key, fault, ascii(text)[1:-1], "a name without control characters")


def _head(name: str, log: Path, shared: tuple[str, ...]) -> list[str]:
    # % starts a filename pattern of Slurm's: only the last part may contain one
    output = f"{str(log.parent).replace('%', '%%')}/{log.name}"
    own = (f"--job-name={shlex.quote(name)}", f"--output={shlex.quote(output)}")
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*own, *shared))]
