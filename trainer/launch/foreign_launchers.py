"""Detection of another launcher (torchrun, mpirun, srun) that started this command once a rank: each would train alone.

Only the command itself checks. Processes that Leyden starts, its agents in a Slurm job among them, are no commands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..base.errors import Problem, raise_all


@dataclass(frozen=True)
class ForeignLauncher:
    """Environment variables that a launcher sets in each process it starts."""

    name: str
    size: str
    """Variable with the number of processes started."""
    rank: str
    rank_needed: bool = False
    """Whether the size alone proves nothing: WORLD_SIZE is also set by hand, and by container images."""


LAUNCHERS = (
    ForeignLauncher("torchrun (or a launcher like it)", "WORLD_SIZE", "RANK", rank_needed=True),
    ForeignLauncher("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ForeignLauncher("mpiexec", "PMI_SIZE", "PMI_RANK"),
    # of the step, not of the job: inside `salloc -n 4` and in a batch script the command runs once
    ForeignLauncher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


def refuse_foreign_launcher(environment: Mapping[str, str]) -> None:
    """Raise where this process is one of several that another launcher has started.

    On every rank: a launcher ends the others when the first of them fails, and that may be any.

    Raises:
        ConfigError: it is; names the variables.
    """
    raise_all(_found(environment))


def _found(environment: Mapping[str, str]) -> Iterator[Problem]:
    for launcher in LAUNCHERS:
        size, rank = environment.get(launcher.size, ""), environment.get(launcher.rank)
        if not size.isdecimal() or int(size) < 2 or (launcher.rank_needed and rank is None):
            continue
        this = "" if rank is None else f", this one with {launcher.rank}={rank}"
        text = (
            f"{launcher.name} has started {size} processes of this command{this}, and each would be a run of its own: "
            f"Leyden starts its workers itself\nif no launcher has set the variable: unset {launcher.size}"
        )
        yield Problem(launcher.size, text, size, _remedy(launcher, int(size)))


def _remedy(launcher: ForeignLauncher, size: int) -> str:
    if launcher.name == "srun":
        return "start `leyden` once, outside srun, with topology=slurm topology.nodes=N topology.devices_per_node=M"
    more = "; on several hosts topology.launcher=node, under Slurm topology=slurm"
    return f"start `leyden` once, with strategy=ddp topology.devices_per_node={size}{more}"
