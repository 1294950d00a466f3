"""Links of a topology as rates and latencies, and the time that a transfer occupies them."""

from dataclasses import dataclass
from typing import Literal

from ...core.transfers import Placement, Transfer
from ...hardware.schema import Device, Fabric, Link, Topology
from .priors import LinkClass, Priors

Source = Literal["measured", "declared", "prior"]
_GB = 1e9
_US = 1e-6


class MissingFigure(ValueError):
    """A figure of the topology that the planner needs."""


@dataclass(frozen=True)
class Channel:
    """Links of one class."""

    rate: float
    """Bytes a second, in one direction."""
    latency: float
    """Seconds of one message."""
    source: Source = "declared"


@dataclass(frozen=True)
class ClusterLinks:
    """What joins the devices of a cluster."""

    in_node: Channel
    """Channel of each device."""
    fabric: Channel
    """Channel of each node, over all its rails."""
    across_sockets: Channel | None = None
    devices_per_socket: int = 0
    """0: the devices of a node are on one socket, or nothing is known of sockets."""
    host_s_per_byte: float = 0.0
    """Time of the processor for every byte that it sends itself."""
    server_s_per_byte: float = 0.0
    """Time of a server's processor for every byte that it exchanges with another node."""
    contention: float = 0.0
    """Share of its rate that a device's computation loses while it communicates; where the processor sends, while that
    does."""


@dataclass(frozen=True)
class Occupation:
    """Time for which a transfer occupies links."""

    seconds: float
    links: frozenset[str]
    """`in node`, `fabric`: a later transfer over one of them waits."""
    load: float
    """Share of its rate that computation loses meanwhile."""

    @property
    def slowest(self) -> str:
        return "fabric" if "fabric" in self.links else "in node"


def links_of(topology: Topology, priors: Priors) -> ClusterLinks:
    """The links that a topology declares, or that were measured there; what it does not say comes from the priors.

    Raises:
        MissingFigure: neither a rate nor a kind is known of a link that the cluster's workers need.
    """
    in_node = _in_node(topology, priors)
    on_cpu = topology.device.kind == "cpu"
    apart = sockets(topology.device)
    across = topology.links.across_sockets
    return ClusterLinks(
        in_node,
        _fabric(topology.fabric, priors) if topology.nodes > 1 else in_node,
        _channel(across, "links.across_sockets", "pcie", priors) if apart and (across.gb_s or across.kind) else None,
        apart,
        host_s_per_byte=priors.host_s_per_gb.value / _GB if on_cpu else 0.0,
        server_s_per_byte=priors.host_s_per_gb.value / _GB,
        # A processor that sends does not compute; a GPU goes on, more slowly.
        contention=1.0 if on_cpu else priors.contention.value,
    )


def sockets(device: Device) -> int:
    """Devices of a socket, where a node's devices are on several; else 0."""
    found = device.sockets or []
    return 0 if len(set(found)) < 2 else len(found) // len(set(found))


def _in_node(topology: Topology, priors: Priors) -> Channel:
    link = topology.links.in_node
    if topology.devices_per_node == 1 or (topology.device.kind == "cpu" and link == Link()):
        # Nothing is sent, or it is copied in memory, which the processor's own time covers.
        rate = (topology.device.memory_gb_s or priors.link_rate.value["pcie3"]) * _GB
        return Channel(rate, priors.link_latency_us.value["in_node"] * _US, "prior")
    kind: LinkClass = "nvlink" if link.kind in ("nvlink", "infinity_fabric") else "pcie"
    return _channel(link, "links.in_node", kind, priors)


def _channel(link: Link, key: str, kind: LinkClass, priors: Priors) -> Channel:
    latency = (link.latency_us or priors.link_latency_us.value["in_node"]) * _US
    if link.gb_s is not None:
        return Channel(link.gb_s * _GB, latency)
    if link.kind is None:
        raise _missing(f"{key}.gb_s", "the rate of a link between devices of a node")
    return Channel(priors.link_rate.value[link.kind] * priors.link_efficiency.value[kind] * _GB, latency, "prior")


def _fabric(fabric: Fabric, priors: Priors) -> Channel:
    latency = (fabric.latency_us or priors.link_latency_us.value["fabric"]) * _US
    if fabric.gb_s is not None:
        return Channel(fabric.gb_s * _GB, latency)
    if fabric.rate_gbit_s is None:
        raise _missing("fabric.gb_s", "the rate at which a node sends")
    kind: LinkClass = "rdma" if fabric.kind in ("infiniband", "roce") else "tcp"
    rate = fabric.rate_gbit_s / 8 * (fabric.rails or 1)
    return Channel(rate * priors.link_efficiency.value[kind] * _GB, latency, "prior")


def _missing(key: str, what: str) -> MissingFigure:
    return MissingFigure(
        f"topology.{key} is not known, {what}: give it (topology.{key}=...), or let `leyden doctor --write` measure it"
    )


def occupation(transfer: Transfer, placement: Placement, links: ClusterLinks) -> Occupation:
    """The time of one transfer over free links, from its busiest device or server.

    A ring is a pipeline: its slowest link decides. A butterfly goes stage by stage: times add up.
    """
    if transfer.link == "none":
        return Occupation(0.0, frozenset(), 0.0)
    crosses = transfer.inter_node_bytes > 0
    inside, outside = _server_times(transfer, placement, links) if transfer.pattern == "servers" else _times(
        transfer, placement, links
    )  # fmt: skip
    wire = inside + outside if transfer.pattern == "butterfly" else max(inside, outside)
    latency = transfer.messages * (links.fabric if crosses else links.in_node).latency
    host = links.host_s_per_byte * transfer.bytes
    seconds = wire + latency + host
    used = {"fabric"} if crosses else set()
    if inside > 0:
        used.add("in node")
    busy = host / seconds if host else 1.0
    return Occupation(seconds, frozenset(used), links.contention * busy)


def _times(transfer: Transfer, placement: Placement, links: ClusterLinks) -> tuple[float, float]:
    """Seconds inside a node and between nodes, between workers."""
    outside = transfer.inter_node_bytes * min(placement.workers_per_node, placement.workers) / links.fabric.rate
    inner = transfer.bytes - transfer.inter_node_bytes
    if transfer.pattern != "butterfly":
        # In a ring every device passes on as much as the busiest one, whatever its link to the next.
        inner = (transfer.bytes if transfer.pattern == "ring" else inner) if placement.workers_per_node > 1 else 0.0
        return inner / _slowest(links), outside
    return inner * _near_first(placement, links), outside


def _slowest(links: ClusterLinks) -> float:
    across = links.across_sockets
    return min(links.in_node.rate, across.rate) if across else links.in_node.rate


def _near_first(placement: Placement, links: ClusterLinks) -> float:
    """Seconds a byte in a node whose devices halve what they exchange from stage to stage, the nearest first."""
    across, each = links.across_sockets, links.devices_per_socket
    if across is None or each in (0, placement.workers_per_node):
        return 1 / links.in_node.rate
    near = (1 - 1 / each) / (1 - 1 / placement.workers_per_node)
    return near / links.in_node.rate + (1 - near) / across.rate


def _server_times(transfer: Transfer, placement: Placement, links: ClusterLinks) -> tuple[float, float]:
    """All workers reach the servers at once, so the busiest server's link and processor decide."""
    total = transfer.inter_node_bytes * placement.workers
    passed = total if placement.servers_on_first else transfer.busiest_inter_node_bytes
    outside = passed * max(1 / links.fabric.rate, links.server_s_per_byte)
    return (transfer.bytes - transfer.inter_node_bytes) / links.in_node.rate, outside
