"""Figures of the doctor. GB are 10^9 bytes, GFLOP 10^9 operations."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

LinkKind = Literal["in_node", "across_sockets", "fabric"]
CollectiveName = Literal["all_reduce", "all_to_all"]


@dataclass(frozen=True)
class WorkerFigures:
    """A measuring worker."""

    rank: int
    node: int
    local: int
    """Index on its node."""
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
    """Best speed of one device, with all others of its node under load."""

    gflop_s: Mapping[str, float]
    """GFLOP/s of a large matrix product, by precision."""
    memory_gb_s: float
    """Read plus written, in a copy of a large array."""

    def all(self) -> dict[str, float]:
        return {**self.gflop_s, "memory": self.memory_gb_s}


@dataclass(frozen=True)
class LinkFigures:
    """One direction between two workers, without other traffic on either."""

    source: int
    target: int
    kind: LinkKind
    latency_us: float
    """One-way latency of a message of 8 bytes."""
    gb_s: Mapping[int, float]
    """Rate by bytes of the message."""

    @property
    def best_gb_s(self) -> float:
        """Bandwidth of the longest message sent."""
        return self.gb_s[max(self.gb_s)]


@dataclass(frozen=True)
class CollectiveFigures:
    """Times of one collective over some workers."""

    name: CollectiveName
    where: str
    workers: int
    seconds: Mapping[int, float]
    """Seconds by bytes of each worker's tensor."""

    def bus_gb_s(self, size: int) -> float:
        """Bus bandwidth: minimal bytes that each worker must send, divided by the time."""
        sent = size * (self.workers - 1) / self.workers * (2 if self.name == "all_reduce" else 1)
        return sent / self.seconds[size] / 1e9


@dataclass(frozen=True)
class Finding:
    """A component slower than expected."""

    what: Literal["device", "node", "link", "topology"]
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


@dataclass
class Result:
    workers: list[WorkerFigures]
    devices: list[DeviceFigures]
    """Figures of the devices by rank."""
    links: list[LinkFigures] = field(default_factory=list)
    collectives: list[CollectiveFigures] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def of_kind(self, kind: LinkKind) -> list[LinkFigures]:
        return [link for link in self.links if link.kind == kind]

    def as_data(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)
