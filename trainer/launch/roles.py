"""Which processes a run consists of, what they are called, and the environment that tells each what it is."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..config import Config
from ..threads import OF_AGENT, OMP, given, share_of

TORCHRUN = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "LEYDEN_SERVER", "LEYDEN_SERVERS", "LEYDEN_WORKER",
    "LEYDEN_WORKERS", "LEYDEN_INCARNATION", OF_AGENT,
)  # fmt: skip
"""What a process of ours never takes from whoever started the agent."""


@dataclass(frozen=True)
class Place:
    """Which of a run's nodes this machine is."""

    node: int = 0
    nodes: int = 1
    interface: str | None = None
    """The network interface on which its workers reach the others."""


@dataclass(frozen=True)
class Role:
    """One process of a run."""

    kind: Literal["worker", "server"]
    number: int
    """Rank of a worker, index of a server."""
    incarnation: int | None = None
    """Of an elastic worker: how many times it was started before."""

    @property
    def name(self) -> str:
        """Of its files, see `records`."""
        if self.kind == "server":
            return f"server-{self.number}"
        return str(self.number) if self.incarnation is None else f"{self.number}-{self.incarnation}"

    @property
    def title(self) -> str:
        """In messages."""
        lockstep = self.kind == "worker" and self.incarnation is None
        return f"rank {self.number}" if lockstep else f"{self.kind} {self.number}"

    @property
    def rank(self) -> int:
        """For summary.json: -1 for a server."""
        return self.number if self.kind == "worker" else -1


def workers_here(config: Config, place: Place) -> list[Role]:
    """The workers of a node, the elastic ones in their first incarnation."""
    here = config.processes // place.nodes
    first = 0 if config.elastic else None
    return [Role("worker", place.node * here + local, first) for local in range(here)]


def servers_here(config: Config, place: Place) -> list[Role]:
    """The servers of a node."""
    node_of = config.topology.server_node
    return [Role("server", index) for index in range(config.servers) if node_of(index) == place.node]


def environment_of(role: Role, config: Config, place: Place) -> dict[str, str]:
    """What makes a process the one that its role says, apart from where it meets the others.

    What the user has set in the agent's environment goes before OMP_NUM_THREADS and GLOO_SOCKET_IFNAME.
    """
    return {name: str(value) for name, value in _settings(role, config, place)}


def _settings(role: Role, config: Config, place: Place) -> Iterator[tuple[str, object]]:
    if role.kind == "server":
        yield OMP, 1
    elif given(os.environ) is None:
        share = share_of(config, role.number % (config.processes // place.nodes))
        yield from ((OMP, share), (OF_AGENT, share))
    if place.interface is not None:
        yield "GLOO_SOCKET_IFNAME", place.interface
    if role.kind == "server":
        yield from (("LEYDEN_SERVER", role.number), ("LEYDEN_SERVERS", config.servers))
    elif role.incarnation is not None:
        yield from (("LEYDEN_WORKER", role.number), ("LEYDEN_WORKERS", config.processes))
        yield "LEYDEN_INCARNATION", role.incarnation
    elif not is_alone(config):
        here = config.processes // place.nodes
        yield from (("RANK", role.number), ("LOCAL_RANK", role.number % here), ("GROUP_RANK", place.node))
        yield "LOCAL_WORLD_SIZE", here
    if not is_alone(config) and role.incarnation is None:
        yield "WORLD_SIZE", config.processes


def is_alone(config: Config) -> bool:
    """Whether the run has one process, which meets nobody: the same as in the command's own process."""
    return config.processes == 1 and config.servers == 0 and config.pipeline is None
