"""What the doctor measures, as data. GB are 10^9 bytes, GFLOP 10^9 operations."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

LinkKind = Literal["in_node", "across_sockets", "fabric"]
CollectiveName = Literal["all_reduce", "all_to_all"]


@dataclass(frozen=True)
class Worker:
    """Who measured."""

    rank: int
    node: int
    local: int
    """Which of its node's workers."""
    host: str
    device: str

    @property
    def title(self) -> str:
        return f"rank {self.rank} (device {self.local} of {self.place})"

    @property
    def place(self) -> str:
        return f"node {self.node} ({self.host})"


@dataclass(frozen=True)
class DeviceFigures:
    """One device at its best, the others of its node at work beside it."""

    gflop_s: Mapping[str, float]
    """Of a large matrix product, by precision."""
    memory_gb_s: float
    """Read and written while a large array is copied."""

    def all(self) -> dict[str, float]:
        return {**self.gflop_s, "memory": self.memory_gb_s}


@dataclass(frozen=True)
class Link:
    """One direction between two workers, nobody else sending on either."""

    source: int
    target: int
    kind: LinkKind
    latency_us: float
    """One way, of a message of 8 bytes."""
    gb_s: Mapping[int, float]
    """By the message's bytes."""

    @property
    def best_gb_s(self) -> float:
        """Of the longest message that was sent."""
        return self.gb_s[max(self.gb_s)]


@dataclass(frozen=True)
class Collective:
    """A collective of some workers."""

    name: CollectiveName
    where: str
    workers: int
    seconds: Mapping[int, float]
    """By the bytes that each worker holds."""

    def bus_gb_s(self, size: int) -> float:
        """What each worker sends in a second if it sends no more than it must."""
        sent = size * (self.workers - 1) / self.workers * (2 if self.name == "all_reduce" else 1)
        return sent / self.seconds[size] / 1e9


@dataclass(frozen=True)
class Finding:
    """Something that is slower than it should be."""

    what: Literal["device", "node", "link", "topology"]
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


@dataclass
class Result:
    workers: list[Worker]
    devices: list[DeviceFigures]
    """By rank."""
    links: list[Link] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def of_kind(self, kind: LinkKind) -> list[Link]:
        return [link for link in self.links if link.kind == kind]

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)
