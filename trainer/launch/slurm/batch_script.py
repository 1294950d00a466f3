"""The batch script of a job: options for sbatch, one agent a node, and the decision whether to requeue."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...base.errors import refuse
from ...base.text import control_character
from ...config.job import JobSpec
from ...config.schema import Config
from .job_steps import agent_step, requeue_step


def folder(run_dir: Path) -> Path:
    """Folder of a run's batch script, log and requeue record."""
    return run_dir / "slurm"


def script_path(job: JobSpec) -> Path:
    return folder(job.run_dir) / "job.sh"


def log_path(job: JobSpec) -> Path:
    """Output of the job; each start of it is appended. An evaluation's lies in the current folder, with a `%j`."""
    return Path.cwd() / "leyden-eval-%j.log" if job.is_evaluation else folder(job.run_dir) / "job.log"


def options(config: Config) -> tuple[str, ...]:
    """Options for sbatch without the job's name and output. The user's own are last: they take precedence."""
    resources = [f"--{name}={shlex.quote(str(value))}" for name, value in _resources(config) if value is not None]
    return (*resources, "--requeue", "--open-mode=append", *config.topology.slurm.sbatch)


def _resources(config: Config) -> Iterator[tuple[str, object]]:
    topology, slurm = config.topology, config.topology.slurm
    yield from (("nodes", topology.nodes), ("ntasks-per-node", 1), ("cpus-per-task", _cores(config)))
    yield from (("gres", _gres(config)), ("gpus-per-node", slurm.gpus_per_node), ("gpus-per-task", slurm.gpus_per_task))
    for name in ("mem", "partition", "account", "qos", "constraint", "exclude", "dependency", "reservation", "comment"):
        yield name, getattr(slurm, name)
    yield from (("switches", slurm.switches), ("time", slurm.time_min))
    # without B: to the steps, which are the agents, and not to the batch shell
    yield "signal", f"TERM@{slurm.signal_s}"


def _gres(config: Config) -> str | None:
    topology, slurm = config.topology, config.topology.slurm
    if slurm.gres is not None or slurm.gpus_per_node is not None or slurm.gpus_per_task is not None:
        return slurm.gres
    return f"gpu:{topology.devices_per_node}" if topology.device.kind == "cuda" else None


def _cores(config: Config) -> int | None:
    host = config.topology.host
    if config.topology.slurm.cpus_per_task is not None:
        return config.topology.slurm.cpus_per_task
    return host.sockets * host.cores_per_socket if host.sockets and host.cores_per_socket else None


def job_script(
    job: JobSpec, name: str, python: str = sys.executable, environment: Mapping[str, str] = os.environ
) -> str:
    """Batch script of one run.

    Args:
        name: of the job, unless the config has one.
        python: this command's interpreter, unless the agents have one of their own.
        environment: this command's; a cluster may not export it by itself.

    Raises:
        ConfigError: a control character would end a line of the script.
    """
    name = job.config.topology.slurm.job_name or name
    _refuse_paths(("hydra.run.dir", str(log_path(job))), ("hydra.job.name", name))
    exported = {key: environment[key] for key in ("PYTHONPATH", "LEYDEN_TRUST") if environment.get(key)}
    paths = (("RUN", str(job.run_dir)), ("RUN", str(job.checkpoint or "")))
    _refuse_control_characters(*paths, ("python", python), *exported.items())
    lines = [
        *_head(name, log_path(job), options(job.config)),
        *(f"export {key}={shlex.quote(value)}" for key, value in exported.items()),
        *job.config.topology.slurm.setup,
        *agent_step(job, python),
        *requeue_step(job, python),
    ]
    return _join_lines(lines)


def array_script(
    name: str, logs: Path, scripts: Mapping[int, Path], shared: tuple[str, ...], parallelism: int | None = None
) -> str:
    """Batch script of several runs with the same options: a job array.

    Args:
        name: of the job.
        logs: folder of the tasks' output, TASK.log.
        scripts: batch script of each trial, by the number of its task.
        shared: the options of all.
        parallelism: tasks that run at the same time; None: as many as Slurm starts.

    Raises:
        ConfigError: a control character would end a line of the script.
    """
    _refuse_paths(("hydra.sweep.dir", str(logs)), ("hydra.job.name", name))
    _refuse_control_characters(*(("hydra.sweep.subdir", str(path)) for path in scripts.values()))
    tasks = f"{task_ranges(sorted(scripts))}{'' if parallelism is None else f'%{parallelism}'}"
    lines = [
        *_head(name, logs / "%a.log", (*shared, f"--array={tasks}")),
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{number}) exec bash {shlex.quote(str(path))} ;;" for number, path in scripts.items()),
        "esac",
    ]
    return _join_lines(lines)


def task_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as sbatch reads them, such as 0-3,7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, each)) for each in ranges)


def _join_lines(lines: Sequence[str]) -> str:
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
