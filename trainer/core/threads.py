"""Number of compute threads of a worker: fixed at its start, recorded, and restored on resumption.

The order of additions in a sum depends on the number of threads, so a run repeats bit for bit only with the same
number. It is the worker's share of the machine: the cores that it may use, within the quota of its control groups,
divided by the workers that share them. The user's OMP_NUM_THREADS wins.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..base.log import log
from ..config.schema import Config, workers_on_node
from ..hardware.affinity import allowed_cores
from ..hardware.discovery.cpus import cpu_quota, physical_cores

OMP = "OMP_NUM_THREADS"
OF_AGENT = "LEYDEN_THREADS"
"""Environment variable with the value of OMP_NUM_THREADS set by the agent, not by the user."""


@dataclass(frozen=True)
class Threads:
    """Number of compute threads of a worker, and its source."""

    count: int
    source: Literal["cores", "OMP_NUM_THREADS", "checkpoint"]
    share: int
    """This worker's share of the machine's cores."""
    workers: int = 1
    """Workers of this node that compute at the same time."""

    def __str__(self) -> str:
        why = {"cores": "", OMP: f" ({OMP})", "checkpoint": " (as in the checkpoint)"}[self.source]
        return f"{self.count} thread{'s' * (self.count > 1)}{why}"


def share_of(config: Config, local_rank: int, root: Path = Path("/")) -> int:
    """Cores of this machine for one of its workers, at least 1. Call before the worker is bound.

    Args:
        local_rank: index of the worker on its node.
        root: folder of /sys and /proc.
    """
    workers = workers_on_node(config)
    allowed = allowed_cores(config.topology, workers, root)
    mine = allowed[local_rank % workers]
    share, quota = physical_cores(mine, root) // allowed.count(mine), cpu_quota(root)
    return max(1, share if quota is None else min(share, int(quota / workers)))


def user_threads(environment: Mapping[str, str]) -> int | None:
    """The user's OMP_NUM_THREADS (of nested levels the outermost); None if it is not a number."""
    first = environment.get(OMP, "").partition(",")[0].strip()
    return int(first) if OF_AGENT not in environment and first.isdigit() and int(first) > 0 else None


def initial_threads(config: Config, local_rank: int, environment: Mapping[str, str], root: Path = Path("/")) -> Threads:
    """Number of threads at the start of a worker."""
    by_user, by_agent = user_threads(environment), environment.get(OF_AGENT)
    share = int(by_agent) if by_agent is not None else share_of(config, local_rank, root)
    workers = workers_on_node(config)
    return Threads(share, "cores", share, workers) if by_user is None else Threads(by_user, OMP, share, workers)


_NO_WORKER = _start = _used = Threads(1, "cores", 1)


def cores() -> int:
    """Cores of this process: a worker's share, or all that it may use."""
    return len(os.sched_getaffinity(0)) if _start is _NO_WORKER else _start.share


def current() -> Threads:
    """Threads of this process."""
    return _used


@contextmanager
def hold_threads(config: Config, local_rank: int) -> Generator[None, None, None]:
    """Inside the context this process computes with the threads of one worker of the node."""
    import torch

    global _start
    before = torch.get_num_threads()
    _start = initial_threads(config, local_rank, os.environ)
    _use(_start)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _use(threads: Threads) -> None:
    import torch

    global _used
    _used = threads
    torch.set_num_threads(threads.count)


def use_initial() -> None:
    """Return to the initial number of threads; an earlier model of a pipeline may have changed it."""
    _use(_start)


def restore(recorded: Sequence[int], rank: int, workers: int, silent: bool) -> None:
    """Use the checkpoint's number of threads if the machine has the cores, so that the run continues bit for bit.

    Args:
        recorded: threads of each worker in the checkpoint; empty in an older one.
        workers: of this run; with another number than before the order of additions changes in any case.
        silent: no warning if it is impossible.
    """
    use_initial()
    before = recorded[rank] if len(recorded) == workers else _start.count
    if before == _start.count:
        return
    if _start.source != OMP and before <= _start.share:
        _use(replace(_start, count=before, source="checkpoint"))
        return
    if silent:
        return
    remedy = f"unset {OMP}" if _start.source == OMP and before <= _start.share else f"{OMP}={before}"
    cores = "" if before <= _start.share else f" (this machine has {_start.share} for it)"
    log.warning(
        "the checkpoint was computed with %d thread%s a worker%s, this session computes with %s: it continues equal to "
        "rounding, not bit for bit; for the same bits: %s", before, "s" * (before > 1), cores, _start, remedy,
    )  # fmt: skip
