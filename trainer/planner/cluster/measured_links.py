"""Links as the collectives show them that `leyden doctor --write` has measured. No torch."""

from collections.abc import Sequence
from dataclasses import replace

from ...hardware.schema import Collective, Topology
from .links import Channel, ClusterLinks

_LEAST = 0.05
"""Part of a measured time that is the wire's, however much the processor's own is."""


def as_measured(links: ClusterLinks, topology: Topology) -> ClusterLinks:
    """The links with the measured channels in place of declared ones.

    Where the processor sends, its own time is part of what was measured, and is taken off.
    """
    found = find_channels(topology)
    if not found:
        return links
    host = min([links.host_s_per_byte, *((1 - _LEAST) / channel.rate for channel in found.values())])
    wires = {name: replace(channel, rate=1 / (1 / channel.rate - host)) for name, channel in found.items()}
    return replace(links, host_s_per_byte=host, **wires)


def find_channels(topology: Topology) -> dict[str, Channel]:
    """Channels in a node and of the fabric, by the all-reduces that were measured there.

    An all-reduce of S bytes over K workers in a ring takes 2 (K - 1) messages and passes 2 (K - 1) / K S bytes over
    each link: the smallest measured size gives the latency of a message, the largest the rate. The fabric's rate is a
    node's, which all its workers share. Times of another number of workers than the topology's count too: a message and
    a byte take as long.
    """
    found: dict[str, Channel] = {}
    for scope, name in (("node", "in_node"), ("all", "fabric")):
        ring = _largest(topology.collectives, scope)
        if ring is None:
            continue
        messages = 2 * (ring.workers - 1)
        latency = ring.ms[0] / 1e3 / messages
        seconds = (ring.ms[-1] - ring.ms[0]) / 1e3
        if seconds <= 0:
            continue
        rate = messages / ring.workers * (ring.bytes[-1] - ring.bytes[0]) / seconds
        found[name] = Channel(rate, latency, "measured")
    return found


def _largest(collectives: Sequence[Collective], scope: str) -> Collective | None:
    """The all-reduce over the most workers, of at least two sizes."""
    fitting = [each for each in collectives if (each.name, each.scope) == ("all_reduce", scope) and len(each.bytes) > 1]
    return max(fitting, key=lambda each: each.workers, default=None)
