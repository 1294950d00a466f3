"""Commands of a batch script: srun with one agent a node, and the decision whether the job is queued again."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import refuse
from ...config.job import JobSpec
from ...config.schema import Config

NEXT_NODE = "LEYDEN_NEXT_NODE"
"""Environment variable with Slurm's address of the second node, for agents that cannot ask Slurm themselves."""
_INTERPRETER = "python3"
"""The interpreter of a container or of the environment that a wrapper opens: the first on PATH there."""
REQUEUE = 74
"""Exit code of the requeue module where its script, outside of the container, is to queue the job again."""
_AGENT = "leyden.trainer.entrypoints.slurm_agent"
_REQUEUE = "leyden.trainer.entrypoints.slurm_requeue"

_NEXT_NODE_FOUND = (
    "# a container may have none of Slurm's commands",
    'next_node="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p)"',
    f'{NEXT_NODE}="$(scontrol --oneliner show node "$next_node" | sed -n \'s/.* NodeAddr=\\([^ ]*\\).*/\\1/p\')"',
    f"export {NEXT_NODE}",
)


def agent_step(job: JobSpec, python: str) -> list[str]:
    """Lines that run one agent a node, with its exit code in `code`.

    Args:
        python: the interpreter of the command that submits.

    Raises:
        ConfigError: the run folder cannot be mounted into the container.
    """
    slurm = job.config.topology.slurm
    agent = [*_interpreter(job.config, python), "-P", "-m", _AGENT, str(job.run_dir), job.verb]
    # --kill-on-bad-exit=0: agents end their own workers after a failure, and node 0 reports its root cause
    placed = [f"--nodes={job.config.topology.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpu-bind=none"]
    return [
        *(_NEXT_NODE_FOUND if slurm.own_interpreter and job.config.topology.nodes > 1 else ()),
        "# Slurm sends SIGTERM to this shell as well as to the agents: it has to outlive them",
        "trap : TERM",
        "# srun does not inherit --cpus-per-task; Leyden binds workers to cores itself",
        "code=0",
        f"{shlex.join(['srun', *placed, *_options(job)])} \\",
        '    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \\',
        f"    {shlex.join([*slurm.srun, *slurm.wrapper, *agent, str(job.checkpoint or '')])} || code=$?",
    ]


def requeue_step(job: JobSpec, python: str) -> list[str]:
    """Lines that end the script: the job is queued again, or ends with the agents' exit code.

    Where the agents' interpreter is that of a container, Slurm's commands may be missing in it: they run outside of it.
    """
    config, slurm = job.config, job.config.topology.slurm
    decide = [*_interpreter(config, python), "-P", "-m", _REQUEUE, str(job.run_dir), job.verb]
    if not slurm.own_interpreter:
        return [f'exec {shlex.join(decide)} "$code"']
    alone = ["srun", "--overlap", *_options(job), *slurm.srun, "--nodes=1", "--ntasks=1", "--relative=0"]
    words = [*(alone if slurm.container_image is not None else ()), *slurm.wrapper, *decide]
    return [
        'job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"',
        'job="${job:-$SLURM_JOB_ID}"',
        'state="$(squeue --noheader --jobs="$job" --format=%T)"',
        'preempted="$(scontrol --oneliner show job "$job" | grep -o " PreemptTime=[0-9]")"',
        "decision=0",
        f'{shlex.join(words)} "$code" "${{state:-unknown}}" "$preempted" || decision=$?',
        f'if [ "$decision" = {REQUEUE} ]; then scontrol requeue "$job"; fi',
        'exit "$code"',
    ]


def _interpreter(config: Config, python: str) -> list[str]:
    return [_INTERPRETER if config.topology.slurm.own_interpreter else python]


def _options(job: JobSpec) -> Iterator[str]:
    """Options of srun that the config names."""
    slurm = job.config.topology.slurm
    yield f"--mpi={slurm.mpi}"
    if slurm.container_image is None:
        return
    yield f"--container-image={slurm.container_image}"
    yield f"--container-mounts={','.join([*slurm.container_mounts, *_own_mounts(job)])}"
    if slurm.container_workdir is not None:
        yield f"--container-workdir={slurm.container_workdir}"


def _own_mounts(job: JobSpec) -> Iterator[str]:
    """The run folder at its own path, of a pipeline the sweep's with all trials; the folder that nodes share."""
    folders = {"hydra.run.dir": job.run_dir.parent if job.config.pipeline is not None else job.run_dir}
    if job.is_evaluation and job.config.topology.nodes > 1:
        folders["the current folder"] = Path.cwd()
    for key, folder in folders.items():
        if any(one in str(folder) for one in ",:"):
            text = "a container's mounts are separated by commas and colons, and this folder's path has one"
            raise refuse(key, text, str(folder), "a folder without commas and colons")
        yield f"{folder}:{folder}"
