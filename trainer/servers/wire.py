"""What passes between a worker and a server: headers of numbers, then tensors of known length. Never pickle.

Each pair has a gloo group of its own, so that nobody receives from any source: when one dies the other is told at
once, and a new worker can join under a new name.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

HEADER = 16
"""Numbers in a header (float64: whole numbers up to 2^53 are exact)."""
RATES = 8
"""A header's learning rates, at most so many parameter groups, begin here."""
MAX_GROUPS = HEADER - RATES
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PATIENCE = timedelta(days=30)
"""A dead peer is noticed at once; a living one may be busy for long (a validation, a warm start)."""


class Ask(IntEnum):
    """What a worker wants."""

    START = 1
    """elements, type, segments; then segments (int64) and this server's values: begin at these."""
    RESTORE = 2
    """elements, type, segments, step, servers; then segments: begin at the files of that checkpoint."""
    PULL = 3
    """Answered with the version, then the values."""
    LOOK = 4
    """As PULL, but nothing follows from it: for evaluation and checkpoints."""
    PUSH = 5
    """Learning rates; then a value. Answered with its staleness."""
    BEGIN = 6
    """serial, epoch, first round, end round, step."""
    TICKET = 7
    """Whether a meeting is wanted (index in MEETINGS), tickets trained in this stretch. Answered with a ticket, or
    minus 1 minus the meeting's index; and the rounds of the epoch that are given out whole."""
    SAVE = 8
    """step. Answered when the file is safe."""
    MEASURE = 9
    """Answered with MEASURES numbers, then so many (staleness, pushes) pairs."""
    LEAVE = 10
    MEET = 11
    """Answered when every worker that is present has asked it: 1 where one was lost at what it had not trained, which
    is given out again."""
    WHERE = 12
    """Of a worker that joins: answered with the stretch that is trained on, as soon as one is; -1 where none comes."""


MEETINGS = ("", "epoch", "save", "stop", "warm")
MEASURES = ("pulls", "pushes", "busy_seconds", "version", "histogram")


def header(*numbers: float, rates: Sequence[float] = ()) -> Tensor:
    assert len(numbers) <= RATES
    assert len(rates) <= MAX_GROUPS
    values = torch.zeros(HEADER, dtype=torch.float64)
    values[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    values[RATES : RATES + len(rates)] = torch.tensor(rates, dtype=torch.float64)
    return values


def open_store() -> dist.TCPStore:
    """A connection of its own to the store that the run's workers meet in."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False)


class Pair:
    """One end of the line between a worker and a server. Blocks until the other end is there.

    Args:
        incarnation: how often the worker has been started again.
    """

    def __init__(self, server: int, worker: int, incarnation: int, *, at_server: bool):
        self._store = dist.PrefixStore(f"leyden/pair/{server}/{worker}/{incarnation}", open_store())
        self._group: Any = dist.ProcessGroupGloo(self._store, 0 if at_server else 1, 2, _PATIENCE)
        self._peer = 1 if at_server else 0

    def start_send(self, tensor: Tensor) -> Any:
        """Returns a work to wait for; the tensor must stay as it is until then."""
        return self._group.send([tensor], self._peer, 0)

    def start_receive(self, into: Tensor) -> Any:
        return self._group.recv([into], self._peer, 0)

    def send(self, tensor: Tensor) -> None:
        """
        Raises:
            RuntimeError: the other end is gone.
        """
        self.start_send(tensor).wait()

    def receive(self, into: Tensor) -> Tensor:
        """
        Raises:
            RuntimeError: the other end is gone.
        """
        self.start_receive(into).wait()
        return into

    def receive_header(self) -> list[float]:
        return self.receive(torch.empty(HEADER, dtype=torch.float64)).tolist()
