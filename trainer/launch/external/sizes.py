"""Sizes of the topology of a run whose processes others have started: hosts, and workers on each."""

from collections.abc import Callable, Mapping
from typing import Any

from ...base.errors import refuse
from ...config.strategy_class import declarations_before_import
from ...hardware.schema import Topology
from .placement import HostPlacement
from .rendezvous import ExternalRendezvous

NODES, DEVICES = "topology.nodes", "topology.devices_per_node"
ServersOf = Callable[[int, int], int]
"""Number of parameter servers of a run, by nodes and devices of each."""


def servers_of(target: str, arguments: Mapping[str, Any], server_placement: str) -> ServersOf:
    """Servers of a strategy: those that one of Leyden's declares, none of others."""
    declared = declarations_before_import(target)

    def number(nodes: int, devices: int) -> int:
        sized = {"nodes": nodes, "devices_per_node": devices, "server_placement": server_placement}
        return 0 if declared is None else declared.processes(arguments, Topology.model_construct(**sized)).servers

    return number


def sizes(started: HostPlacement, servers: ServersOf) -> list[str]:
    """Overrides that say them: of the processes on a host those are workers that are no servers."""
    most = started.processes_per_node
    fitting = (each for each in range(most, 0, -1) if servers(started.nodes, each) == (most - each) * started.nodes)
    return [f"{NODES}={started.nodes}", f"{DEVICES}={next(fitting, most)}"]


def with_sizes(overrides: list[str], topology: Any, servers: ServersOf) -> list[str]:
    """The overrides with the sizes that were started, where nothing but a default says any.

    Args:
        topology: composed of the overrides.

    Raises:
        ConfigError: the topology has others than were started.
    """
    if ExternalRendezvous.current is None:
        return overrides
    started, world = ExternalRendezvous.current.placement, ExternalRendezvous.current.world
    nodes, devices = topology.nodes, topology.devices_per_node
    if not (isinstance(nodes, int) and isinstance(devices, int)):
        return overrides  # what is wrong with them is said where all values are checked
    extra = servers(nodes, devices)
    if (nodes, nodes * devices + extra) == (started.nodes, started.nodes * started.processes_per_node):
        return overrides
    given = any(override.startswith((f"{NODES}=", f"{DEVICES}=")) for override in overrides)
    if nodes == devices == 1 and not given:
        return [*overrides, *sizes(started, servers)]
    text = (
        f"{world.starter} has started {world.size} processes, {started.processes_per_node} on each of {started.nodes} "
        f"hosts, and the topology has {nodes} x {devices}"
    )
    text += f" and {extra} parameter servers" if extra else ""
    raise refuse(NODES, text, nodes, " ".join(sizes(started, servers)))
