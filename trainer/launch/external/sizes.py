"""Sizes of the topology of a run whose processes others have started: hosts, and processes on each."""

from typing import Any

from ...base.errors import refuse
from .placement import HostPlacement
from .rendezvous import ExternalRendezvous

NODES, DEVICES = "topology.nodes", "topology.devices_per_node"


def sizes(placement: HostPlacement) -> list[str]:
    """Overrides that say them."""
    return [f"{NODES}={placement.nodes}", f"{DEVICES}={placement.devices_per_node}"]


def with_sizes(overrides: list[str], topology: Any) -> list[str]:
    """The overrides with the sizes that were started, where nothing but a default says any.

    Args:
        topology: composed of the overrides.

    Raises:
        ConfigError: the topology has others than were started.
    """
    if ExternalRendezvous.current is None:
        return overrides
    started, world = ExternalRendezvous.current.placement, ExternalRendezvous.current.world
    if (topology.nodes, topology.devices_per_node) == (started.nodes, started.devices_per_node):
        return overrides
    given = any(override.startswith((f"{NODES}=", f"{DEVICES}=")) for override in overrides)
    if topology.nodes == topology.devices_per_node == 1 and not given:
        return [*overrides, *sizes(started)]
    text = (
        f"{world.starter} has started {world.size} processes, {started.devices_per_node} on each of {started.nodes} "
        f"hosts, and the topology has {topology.nodes} x {topology.devices_per_node}"
    )
    raise refuse(NODES, text, topology.nodes, " ".join(sizes(started)))
