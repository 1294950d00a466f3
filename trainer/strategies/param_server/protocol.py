"""Messages between a worker and a parameter server: dataclasses, and the headers that carry them.

A message is one header, 16 float64 numbers; tensors of a size that both ends then know may follow it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from ...core.ticket_source import SyncReason, WorkRange

# Numbers, because gloo sends tensors of a size that the receiver must know beforehand, and because nothing that arrives
# is ever unpickled. Float64, because it holds learning rates and whole numbers up to 2^53 exactly alike.
HEADER_LENGTH = 16
MAX_GROUPS = HEADER_LENGTH - 2
"""Parameter groups whose learning rates fit into a header, after its kind and their number."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class ProtocolError(Exception):
    """A message that is unknown, malformed, or not expected now."""


@dataclass(frozen=True)
class Start:
    """Initialize the shard. Followed by the segments and the server's share of the values. Reply: Done."""

    elements: int
    """Elements of the whole vector."""
    dtype: torch.dtype
    segments: int
    """Rows (parameter group, elements) of an int64 table."""


@dataclass(frozen=True)
class Restore:
    """Initialize the shard from the files of a checkpoint. Followed by the segments. Reply: Done."""

    elements: int
    dtype: torch.dtype
    segments: int
    step: int
    servers: int
    """Number of servers that wrote the checkpoint."""


@dataclass(frozen=True)
class PullRequest:
    """Reply: Values, followed by the parameters. The next PushRequest is stale by the updates applied since."""


@dataclass(frozen=True)
class Read:
    """Request like PullRequest, for evaluation and checkpoints: without effect on staleness and counters."""


@dataclass(frozen=True)
class PushRequest:
    """Apply an update, which follows. Reply: Applied."""

    learning_rates: tuple[float, ...]
    """Learning rate of each parameter group; empty for servers without an optimizer."""


@dataclass(frozen=True)
class Begin:
    """Hand out the tickets of a work range. Reply: Done."""

    work: WorkRange


@dataclass(frozen=True)
class Draw:
    """Reply: Ticket, or Synchronize."""

    requested: SyncReason | None
    """A synchronization that this worker requests."""
    trained: int
    """Tickets of the work range that this worker has trained."""


@dataclass(frozen=True)
class Barrier:
    """Wait for all workers that are present. Reply: Released."""


@dataclass(frozen=True)
class Join:
    """Message of a restarted worker. Reply: CurrentWork, as soon as tickets are handed out, or Finished."""


@dataclass(frozen=True)
class Save:
    """Write the shard next to the checkpoint of a step. Reply: Done, when the file is on disk."""

    step: int


@dataclass(frozen=True)
class Measure:
    """Reply: Counters, followed by the staleness histogram."""


@dataclass(frozen=True)
class Leave:
    """The worker sends nothing more. No reply."""


@dataclass(frozen=True)
class Done:
    """The request has been carried out."""


@dataclass(frozen=True)
class Values:
    """Parameters follow."""

    version: int


@dataclass(frozen=True)
class Applied:
    """The update has been applied."""

    staleness: int


@dataclass(frozen=True)
class Ticket:
    """A slice to train on."""

    number: int
    rounds: int
    """Rounds of the epoch whose tickets have all been handed out."""


@dataclass(frozen=True)
class Synchronize:
    """No ticket before all workers have synchronized."""

    reason: SyncReason
    rounds: int


@dataclass(frozen=True)
class Released:
    """All workers have reached the barrier."""

    more_tickets: bool
    """Whether a worker was lost meanwhile and its tickets are handed out again."""


@dataclass(frozen=True)
class CurrentWork:
    """The work range whose tickets are being handed out."""

    work: WorkRange


@dataclass(frozen=True)
class Finished:
    """All other workers have left."""


@dataclass(frozen=True)
class Counters:
    """Totals since the server's start."""

    pulls: int
    pushes: int
    busy_seconds: float
    version: int
    staleness_rows: int
    """Rows (staleness, pushes) of the int64 table that follows."""


Request = Start | Restore | PullRequest | Read | PushRequest | Begin | Draw | Barrier | Join | Save | Measure | Leave
Reply = Done | Values | Applied | Ticket | Synchronize | Released | CurrentWork | Finished | Counters
Message = Request | Reply
Expected = TypeVar("Expected", bound=Message)
_KINDS: dict[float, type[Message]] = dict(enumerate([*get_args(Request), *get_args(Reply)], start=1))
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def encode(message: Message) -> Tensor:
    """The header of a message: number of its kind, then its fields in their order, then zeros.

    Raises:
        ValueError: more parameter groups than fit.
    """
    numbers = [_NUMBERS[type(message)]]
    for field in fields(message):
        numbers += _FORMATS[field.type].encode(getattr(message, field.name))
    if len(numbers) > HEADER_LENGTH:
        raise ValueError(f"parameter servers take at most {MAX_GROUPS} parameter groups")
    return torch.tensor(numbers + [0.0] * (HEADER_LENGTH - len(numbers)), dtype=torch.float64)


def decode(header: Tensor, expected: Sequence[type[Expected]]) -> Expected:
    """The message of a header.

    Raises:
        ProtocolError: it is none of the expected ones, or a field has no such value.
    """
    numbers: Iterator[float] = iter(header.tolist())
    number = next(numbers)
    kind = _KINDS.get(number)
    if kind is None:
        raise ProtocolError(f"an unknown message (kind {number:g})")
    found = next((one for one in expected if one is kind), None)
    if found is None:
        names = " or ".join(one.__name__ for one in expected)
        raise ProtocolError(f"an unexpected message ({kind.__name__} instead of {names})")
    values: list[Any] = []
    for field in fields(found):
        try:
            values.append(_FORMATS[field.type].decode(numbers))
        except ValueError as error:
            raise ProtocolError(f"a malformed {kind.__name__}: its {field.name} is {error}") from None
    if any(numbers):
        raise ProtocolError(f"a malformed {kind.__name__}: numbers after its last field")
    return found(*values)


class _Format(NamedTuple):
    """How fields of one type become numbers of a header, and back."""

    encode: Callable[[Any], Sequence[float]]
    decode: Callable[[Iterator[float]], Any]


def _whole(numbers: Iterator[float]) -> int:
    number = next(numbers)
    if not (0 <= number <= 2**53 and number == int(number)):
        raise ValueError(f"{number:g}, not a whole number")
    return int(number)


def _choice(values: tuple[Any, ...]) -> _Format:
    def choose_message(numbers: Iterator[float]) -> Any:
        index = _whole(numbers)
        if index >= len(values):
            raise ValueError(f"choice {index} of {len(values)}")
        return values[index]

    return _Format(lambda value: [values.index(value)], choose_message)


def _rates(numbers: Iterator[float]) -> tuple[float, ...]:
    count = _whole(numbers)
    if count > MAX_GROUPS:
        raise ValueError(f"{count} numbers, of at most {MAX_GROUPS}")
    return tuple(islice(numbers, count))


_REASONS = get_args(SyncReason)
_FORMATS: dict[Any, _Format] = {
    int: _Format(lambda value: [value], _whole),
    float: _Format(lambda value: [value], lambda numbers: next(numbers)),
    bool: _choice((False, True)),
    torch.dtype: _choice(DTYPES),
    SyncReason: _choice(_REASONS),
    SyncReason | None: _choice((None, *_REASONS)),
    WorkRange: _Format(astuple, lambda numbers: WorkRange(*(_whole(numbers) for _ in fields(WorkRange)))),
    tuple[float, ...]: _Format(lambda rates: [len(rates), *rates], _rates),
}
