"""Starters: programs that start this command once a rank, and the environment variables by which each is known.

Without topology.launcher=external every such process would train alone, so the command refuses.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...base.errors import Problem, raise_all, refuse

LAUNCHER = "topology.launcher"
EXTERNAL = f"{LAUNCHER}=external"
"""The word by which a command says that others start its processes: on the command line, which every rank reads."""

DEFAULT_PORT = 29500
"""Port if MASTER_ADDR is given without MASTER_PORT; torchrun's."""
_FIRST_PORT_OF_STEPS, _PORTS_OF_STEPS = 15000, 10000
"""Slurm's steps on several nodes that name no port: steps of one node differ by job and step."""


def with_external(overrides: Sequence[str]) -> list[str]:
    """The overrides of a run whose processes another program starts.

    Raises:
        ConfigError: they name another launcher.
    """
    given = [word for word in overrides if word.startswith(f"{LAUNCHER}=")]
    if given and given[-1] != EXTERNAL:
        text = "must be external: another program starts the processes"
        raise refuse(LAUNCHER, text, given[-1].partition("=")[2], "leave it out")
    return [*overrides, *([] if given else [EXTERNAL])]


@dataclass(frozen=True)
class Starter:
    """Environment variables that a starter sets in each process."""

    name: str
    size: str
    """Number of processes."""
    rank: str
    local_rank: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    """Variables that together name the job, by which processes of one host find each other."""
    rank_needed: bool = False
    """Whether the size alone proves nothing: WORLD_SIZE is also set by hand, and by container images."""


STARTERS = (
    Starter("torchrun (or a launcher like it)", "WORLD_SIZE", "RANK", ("LOCAL_RANK",), rank_needed=True),
    Starter(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    ),
    Starter("mpiexec", "PMI_SIZE", "PMI_RANK", ("MPI_LOCALRANKID",), ("PMI_JOBID", "PMIX_NAMESPACE")),
    Starter(
        "LSF's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_LOCAL_RANK",),
        ("LSB_JOBID", "PMIX_NAMESPACE"),
    ),
    # of the step, not of the job: inside `salloc -n 4` and in a batch script the command runs once
    Starter(
        "srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", ("SLURM_LOCALID",),
        ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """The processes of a starter, as one of them finds itself among them.

    Attributes:
        local_rank: among those of this host; None where the starter does not say.
        address, port: of the rendezvous, from MASTER_ADDR and MASTER_PORT, or the first of Slurm's nodes; None: the
            processes of one host have to agree on one.
        job: names the starter's job; "" where it does not say.
        restarts: of the workers, by the starter.
        store_served: whether the starter serves a store at the rendezvous, as torchrun does.
    """

    starter: str
    rank: int
    size: int
    local_rank: int | None
    address: str | None
    port: int | None
    job: str = ""
    restarts: int = 0
    store_served: bool = False


def world_of(environment: Mapping[str, str]) -> World:
    """The world that this process is in.

    Raises:
        ConfigError: no starter has left its variables, or they contradict each other.
    """
    starter = next((one for one in STARTERS if one.size in environment and one.rank in environment), None)
    if starter is None:
        needed = " or ".join(f"{one.size} and {one.rank}" for one in STARTERS)
        text = f"no other program has started this process: the environment has neither {needed}"
        remedy = f"torchrun --nproc_per_node=2 --no-python leyden {EXTERNAL} strategy=ddp, or {LAUNCHER}=local"
        raise refuse(LAUNCHER, text, "external", remedy)
    size, rank = _number(environment, starter.size), _number(environment, starter.rank)
    if rank >= size:
        text = f"is the rank of one of {size} processes ({starter.size}), counted from 0"
        raise refuse(starter.rank, text, rank, f"{starter.rank}={size - 1}")
    local = next((name for name in starter.local_rank if name in environment), None)
    address, port = _rendezvous(environment, starter)
    return World(
        starter.name, rank, size,
        None if local is None else _number(environment, local),
        address, port,
        "/".join(environment[name] for name in starter.job if name in environment),
        _number(environment, "TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in environment else 0,
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )  # fmt: skip


def _rendezvous(environment: Mapping[str, str], starter: Starter) -> tuple[str | None, int | None]:
    """Address and port of rank 0, as far as they are known."""
    address = environment.get("MASTER_ADDR") or None
    port = _number(environment, "MASTER_PORT") if environment.get("MASTER_PORT") else None
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if address is None and starter.name == "srun" and environment.get("SLURM_STEP_NUM_NODES", "1") != "1" and nodes:
        address = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).split(",")[0]
        step = _number(environment, "SLURM_JOB_ID") + _number(environment, "SLURM_STEP_ID")
        return address, port or _FIRST_PORT_OF_STEPS + step % _PORTS_OF_STEPS
    return address, port or (DEFAULT_PORT if address else None)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not value.isdecimal():
        raise refuse(name, "must be a whole number", value, f"unset {name}, or what starts this process sets it")
    return int(value)


def refuse_starter(environment: Mapping[str, str]) -> None:
    """Raise where this process is one of several that another program has started.

    On every rank: a starter ends the others when the first of them fails, and that may be any.

    Raises:
        ConfigError: it is; names the variables.
    """
    raise_all(_find_problems(environment))


def _find_problems(environment: Mapping[str, str]) -> Iterator[Problem]:
    for starter in STARTERS:
        size, rank = environment.get(starter.size, ""), environment.get(starter.rank)
        if not size.isdecimal() or int(size) < 2 or (starter.rank_needed and rank is None):
            continue
        this = "" if rank is None else f", this one with {starter.rank}={rank}"
        text = (
            f"{starter.name} has started {size} processes of this command{this}, and each would be a run of its own\n"
            f"if no program has set the variable: unset {starter.size}"
        )
        yield Problem(starter.size, text, size, _remedy(starter, int(size)))


def _remedy(starter: Starter, size: int) -> str:
    external = f"{EXTERNAL} on this command line, for one run whose workers they are; or "
    if starter.name == "srun":
        return f"{external}start `leyden` once, outside srun, with topology=slurm topology.nodes=N"
    more = f"; on several hosts {LAUNCHER}=node, under Slurm topology=slurm"
    return f"{external}start `leyden` once, with strategy=ddp topology.devices_per_node={size}{more}"
