"""How many threads a worker computes with: fixed at its start, recorded, and restored when a run is resumed.

The order in which a sum is added up depends on the number of threads that share it, so a run repeats bit for bit with
the same number only. It is what the machine has for the worker: the processor cores that it may run on, no more than
its control groups allow, divided by the workers that share them. OMP_NUM_THREADS, where the user has set it, wins.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .binding import allowed_cores
from .config import Config
from .discovery.processors import cpu_quota, physical_cores
from .log import log

OMP = "OMP_NUM_THREADS"
OF_AGENT = "LEYDEN_THREADS"
"""Environment variable: the agent has set OMP_NUM_THREADS to it, and not the user."""


@dataclass(frozen=True)
class Threads:
    """The threads that a worker computes with."""

    count: int
    source: Literal["cores", "OMP_NUM_THREADS", "checkpoint"]
    share: int
    """Processor cores that the machine has for this worker."""
    workers: int = 1
    """Of this node, which compute at the same time."""

    def __str__(self) -> str:
        why = {"cores": "", OMP: f" ({OMP})", "checkpoint": " (as in the checkpoint)"}[self.source]
        return f"{self.count} thread{'s' * (self.count > 1)}{why}"


def workers_of_node(config: Config) -> int:
    return max(1, config.processes // (1 if config.simulated else config.topology.nodes))


def share_of(config: Config, local_rank: int, root: Path = Path("/")) -> int:
    """Processor cores of this machine for one of its workers; at least 1. To be asked before the worker is bound.

    Args:
        local_rank: which of this node's workers.
        root: the folder in which /sys and /proc are looked for.
    """
    workers = workers_of_node(config)
    allowed = allowed_cores(config.topology, workers, root)
    mine = allowed[local_rank % workers]
    share, quota = physical_cores(mine, root) // allowed.count(mine), cpu_quota(root)
    return max(1, share if quota is None else min(share, int(quota / workers)))


def given(environment: Mapping[str, str]) -> int | None:
    """The user's OMP_NUM_THREADS (of nested levels the outermost); None where it is not set to a number."""
    first = environment.get(OMP, "").partition(",")[0].strip()
    return int(first) if OF_AGENT not in environment and first.isdigit() and int(first) > 0 else None


def decided(config: Config, local_rank: int, environment: Mapping[str, str], root: Path = Path("/")) -> Threads:
    """What a worker starts with."""
    by_user, by_agent = given(environment), environment.get(OF_AGENT)
    share = int(by_agent) if by_agent is not None else share_of(config, local_rank, root)
    workers = workers_of_node(config)
    return Threads(share, "cores", share, workers) if by_user is None else Threads(by_user, OMP, share, workers)


_start = _used = Threads(1, "cores", 1)


def used() -> Threads:
    """What this process computes with."""
    return _used


@contextmanager
def fixed(config: Config, local_rank: int) -> Iterator[None]:
    """This process computes with the threads of one of a node's workers for as long as the context lasts."""
    import torch

    global _start
    before = torch.get_num_threads()
    _start = decided(config, local_rank, os.environ)
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


def use_own() -> None:
    """Compute with what this process has started with; a model that was here before may have had others."""
    _use(_start)


def restore(recorded: Sequence[int], rank: int, workers: int, silent: bool) -> None:
    """Compute with as many threads as before where the machine has the cores, so that the run goes on bit for bit.

    Args:
        recorded: those of each worker in the checkpoint; of none in an older one.
        workers: of this run; where they were others, sums are added up in another order in any case.
        silent: say nothing where it cannot be.
    """
    use_own()
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
        "the checkpoint was computed with %d thread%s a worker%s, this session computes with %s: it goes on equal to "
        "rounding, not bit for bit; for the same bits: %s", before, "s" * (before > 1), cores, _start, remedy,
    )  # fmt: skip
