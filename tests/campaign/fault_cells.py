"""Cells of the fault campaign: which fault is injected in which phase of a run of which strategy."""

from pairwise import Cell, cover

FAULTS = (
    "kill worker", "kill agent", "kill launcher", "kill server", "kill coordinator", "SIGTERM", "SIGINT", "SIGSTOP",
    "ENOSPC", "EACCES", "EIO", "data removed", "clock step", "descriptors", "memory limit",
)  # fmt: skip
PHASES = ("start", "mid-epoch", "save", "validation", "end")
STRATEGIES = ("single", "ddp", "butterfly", "hybrid", "fsdp", "easgd server", "asgd", "pipeline")
SERVERS = ("easgd server", "asgd")
"""Asynchronous: what they compute depends on the timing, so a resumed run ends with other weights."""


def exists(cell: Cell) -> bool:
    """Whether a run of the strategy has the process that the fault is injected into.

    On one host the command itself is the agent, and the worker of `single`. A pipeline's agent has the coordinator as a
    thread, and the command that the user has given is a process above it, the launcher.
    """
    fault, _, strategy = cell
    if fault == "kill agent":
        return strategy not in ("single", "pipeline")
    if fault in ("kill launcher", "kill coordinator"):
        return strategy == "pipeline"
    if fault == "kill server":
        return strategy in SERVERS
    return True


CELLS = cover((FAULTS, PHASES, STRATEGIES), exists)

IN_CI = (
    ("EIO", "save", "single"),
    ("memory limit", "mid-epoch", "ddp"),
)
"""Cells of faults of which no other test in CI has a case; two strategies, of which each needs a run to compare with.
Descriptors, removed data and a step of the clock are in the campaign alone."""
