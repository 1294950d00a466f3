"""Root cause of a worker group's failure: the process that failed first."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import CannotStart, Problem
from .process import ProcessExit

_LOST_PEER = re.compile(r"gloo/transport|Connection (closed|reset)|Broken pipe|NCCL")
"""Messages of a process that failed because a peer had died."""


@dataclass(frozen=True)
class Failure:
    """Root cause of a worker group's failure."""

    title: str
    """The process: "rank 1", "server 0"; empty where `message` is complete."""
    rank: int
    """Rank in summary.json: -1 if it is no worker."""
    message: str
    users_mistake: bool = False
    traceback: str = ""
    refused: bool = False
    """Whether the preflight raised it."""
    problem: Mapping[str, Any] = field(default_factory=dict)
    """The user's mistake with its key, where that is known."""
    lasting: bool = False
    """Whether a restart would meet it again."""

    def as_mistake(self) -> CannotStart:
        """The exception that the process raised, for the user."""
        return CannotStart(Problem(**self.problem) if self.problem else self.message)

    def __str__(self) -> str:
        return f"{self.title} failed: {self.message}" if self.title else self.message


def root_cause(exits: Sequence[ProcessExit]) -> Failure:
    """Root cause among the exits of all nodes.

    A process that was killed, or exited without an error file, comes first: its peers fail because of it. An abort is
    gloo's reaction to a dead peer. Else the earliest error counts: a worker records its own before its sockets close.
    """
    failed = sorted((e for e in exits if e.code and not e.killed_by_agent), key=lambda e: (e.time, e.role.number))
    unexplained = [e for e in failed if e.error is None and e.code != -signal.SIGABRT]
    if unexplained:
        return _without_error(unexplained[0])
    recorded = [(e, e.error) for e in failed if e.error is not None]
    # clocks of several nodes are too inexact for the earliest error to be always the cause
    causes = [pair for pair in recorded if pair[1].refused or not _LOST_PEER.search(pair[1].message)]
    recorded = causes or recorded
    if recorded:
        first, error = min(recorded, key=lambda pair: pair[1].time)
        details = (error.message, error.users_mistake, error.traceback, error.refused, error.problem, error.lasting)
        return Failure(first.role.title, first.role.rank, *details)
    if failed:
        return _without_error(failed[0])
    return Failure("", -1, "ended by its agents: a second Ctrl-C, or one of them was silent for too long")


def _without_error(failed: ProcessExit) -> Failure:
    how = f"killed by {signal.Signals(-failed.code).name}" if failed.code < 0 else f"exit code {failed.code}"
    if failed.out_of_memory:
        how = f"{how} by the kernel: out of memory (the host's, or the limit of the job or container)"
    return Failure(failed.role.title, failed.role.rank, how)
