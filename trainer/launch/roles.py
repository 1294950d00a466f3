"""Processes of a run: their roles, their names, and the environment variables that give each its role."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..base.handshake import SECRET
from ..config.schema import Config
from ..core.threads import OF_AGENT, OMP, share_of, user_threads

TORCHRUN = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "LEYDEN_SERVER", "LEYDEN_SERVERS", "LEYDEN_WORKER",
    "LEYDEN_WORKERS", "LEYDEN_INCARNATION", SECRET, OF_AGENT,
)  # fmt: skip
"""Environment variables that a worker or server never inherits from the agent's parent."""


@dataclass(frozen=True)
class LocalNode:
    """This machine as one of a run's nodes."""

    rank: int = 0
    count: int = 1
    """Nodes of the run."""
    interface: str | None = None
    """Network interface on which its workers reach the other nodes."""


@dataclass(frozen=True)
class Role:
    """One process of a run."""

    kind: Literal["worker", "server"]
    number: int
    """Rank of a worker, index of a server."""
    incarnation: int | None = None
    """Restarts of an elastic worker; None in lockstep."""

    @property
    def name(self) -> str:
        """Name of the role in its files, see `error_files`."""
        if self.kind == "server":
            return f"server-{self.number}"
        return str(self.number) if self.incarnation is None else f"{self.number}-{self.incarnation}"

    @property
    def title(self) -> str:
        """Name of the role in messages."""
        lockstep = self.kind == "worker" and self.incarnation is None
        return f"rank {self.number}" if lockstep else f"{self.kind} {self.number}"

    @property
    def rank(self) -> int:
        """Rank in summary.json: -1 for a server."""
        return self.number if self.kind == "worker" else -1


def local_workers(config: Config, node: LocalNode) -> list[Role]:
    """Workers of a node, elastic ones in their first incarnation."""
    local_world_size = config.worker_processes // node.count
    first = 0 if config.elastic else None
    return [Role("worker", node.rank * local_world_size + local, first) for local in range(local_world_size)]


def local_servers(config: Config, node: LocalNode) -> list[Role]:
    """Servers of a node."""
    node_of = config.topology.server_node
    return [Role("server", index) for index in range(config.servers) if node_of(index) == node.rank]


def environment_of(role: Role, config: Config, node: LocalNode) -> dict[str, str]:
    """Environment variables of a role, without those of the rendezvous.

    OMP_NUM_THREADS and GLOO_SOCKET_IFNAME are defaults: the agent's environment takes precedence.
    """
    return {name: str(value) for name, value in _settings(role, config, node)}


def _settings(role: Role, config: Config, node: LocalNode) -> Iterator[tuple[str, object]]:
    local_world_size = config.worker_processes // node.count
    if role.kind == "server":
        yield OMP, 1
    elif user_threads(os.environ) is None:
        share = share_of(config, role.number % local_world_size)
        yield from ((OMP, share), (OF_AGENT, share))
    if node.interface is not None:
        yield "GLOO_SOCKET_IFNAME", node.interface
    if role.kind == "server":
        yield from (("LEYDEN_SERVER", role.number), ("LEYDEN_SERVERS", config.servers))
    elif role.incarnation is not None:
        yield from (("LEYDEN_WORKER", role.number), ("LEYDEN_WORKERS", config.worker_processes))
        yield "LEYDEN_INCARNATION", role.incarnation
    elif not is_alone(config):
        yield from (("RANK", role.number), ("LOCAL_RANK", role.number % local_world_size), ("GROUP_RANK", node.rank))
        yield "LOCAL_WORLD_SIZE", local_world_size
    if not is_alone(config) and role.incarnation is None:
        yield "WORLD_SIZE", config.worker_processes


def is_alone(config: Config) -> bool:
    """Whether the run has a single process and needs no store: it could as well be the command's own."""
    return config.worker_processes == 1 and config.servers == 0 and config.pipeline is None
