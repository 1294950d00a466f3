"""Who failed first, and what is said of it."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CannotStart, Problem
from .processes import Exit

_LOST_PEER = re.compile(r"gloo/transport|Connection (closed|reset)|Broken pipe|NCCL")
"""What somebody says who noticed that another had died."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed."""

    title: str
    """Who is to blame: "rank 1", "server 0"; empty where `message` says it all."""
    rank: int
    """For summary.json: -1 where it was no worker."""
    message: str
    users_mistake: bool = False
    traceback: str = ""
    refused: bool = False
    """By the preflight."""
    problem: Mapping[str, Any] = field(default_factory=dict)
    """The user's mistake with its key, where that is known."""

    def as_mistake(self) -> CannotStart:
        """The exception that the process raised, for the user."""
        return CannotStart(Problem(**self.problem) if self.problem else self.message)

    def __str__(self) -> str:
        return f"{self.title} failed: {self.message}" if self.title else self.message


def blamed(exits: Sequence[Exit]) -> Failure:
    """What made an attempt fail.

    A process that was killed, or that left without a word, has no record, and its peers fail of it; an abort is gloo's
    answer to a dead peer. Else the earliest record counts: a worker writes its own before its sockets close.
    """
    failed = sorted((e for e in exits if e.code and not e.ended_by_agent), key=lambda e: (e.time, e.role.number))
    silent = [e for e in failed if e.record is None and e.code != -signal.SIGABRT]
    if silent:
        return _without_record(silent[0])
    recorded = [(e, e.record) for e in failed if e.record is not None]
    # clocks of several nodes are not so exact that the earliest record is always the cause
    causes = [pair for pair in recorded if pair[1].refused or not _LOST_PEER.search(pair[1].message)]
    recorded = causes or recorded
    if recorded:
        first, record = min(recorded, key=lambda pair: pair[1].time)
        how = (record.message, record.users_mistake, record.traceback, record.refused, record.problem)
        return Failure(first.role.title, first.role.rank, *how)
    if failed:
        return _without_record(failed[0])
    return Failure("", -1, "killed by a second Ctrl-C")


def _without_record(ended: Exit) -> Failure:
    how = f"killed by {signal.Signals(-ended.code).name}" if ended.code < 0 else f"exit code {ended.code}"
    return Failure(ended.role.title, ended.role.rank, how)
