"""Placement on hosts: which of a starter's processes are on one host, from what each reports, and the role of each."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import refuse
from ...config.schema import Config
from ...runs.lease_record import boot_id
from ..roles import LocalNode, Role, local_servers, local_workers

_NETWORK = Path("/proc/self/ns/net")


def own_host() -> str:
    """A name that processes share which reach each other on loopback: those of one host, or of one container."""
    network = os.readlink(_NETWORK) if _NETWORK.is_symlink() else ""
    return f"{socket.gethostname()} {boot_id()} {network}"


@dataclass(frozen=True)
class HostPlacement:
    """Processes by host: rank r is number r % processes_per_node of node r // processes_per_node."""

    nodes: int
    processes_per_node: int


def processes_per_node(config: Config) -> int:
    """Processes that are started on each host: its workers and its parameter servers."""
    return config.topology.devices_per_node + config.servers // config.topology.nodes


def role_of(rank: int, config: Config) -> Role:
    """Role of a starter's process: the first of a host are its workers, the others its servers."""
    node, local = divmod(rank, processes_per_node(config))
    here = LocalNode(node, config.topology.nodes)
    return [*local_workers(config, here), *local_servers(config, here)][local]


def placement_of(hosts: Sequence[str]) -> HostPlacement:
    """The placement of ranks whose hosts have these names.

    Raises:
        ConfigError: hosts have different numbers of processes, or ranks that do not follow each other.
    """
    names = list(dict.fromkeys(hosts))
    counts = [hosts.count(name) for name in names]
    listed = ", ".join(f"{name.split()[0]}: {count}" for name, count in zip(names, counts, strict=True))
    key = "topology.devices_per_node"
    if len(set(counts)) > 1:
        text = f"each host must run the same number of processes, and the starter has begun {listed}"
        raise refuse(key, text, remedy="the same number of processes on each host")
    if list(hosts) != [name for name in names for _ in range(counts[0])]:
        text = "the ranks of a host must follow each other, and the starter has dealt them out in turns"
        raise refuse(key, text, remedy="block distribution: mpirun --map-by slot, srun --distribution=block")
    return HostPlacement(len(names), counts[0])
