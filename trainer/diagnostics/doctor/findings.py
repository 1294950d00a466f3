"""Findings: components slower than others of their kind, or than the topology declares."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...hardware.schema import Topology
from .results import Finding, LinkFigures, LinkKind, Result

SLOW_DEVICE = 0.8
"""Fraction of the median. Healthy devices of one model differ by a few percent; throttled ones by a fifth."""
SLOW_LINK = 0.7
"""Fraction of the median. Faults of a link halve it: a lane, a PCIe generation, a rail, a cable at a lower rate."""
OF_PEAK = 0.5
"""Fraction of declared peak_tflops, of which a good library reaches 0.7."""
OF_MEMORY = 0.6
"""Fraction of declared memory_gb_s, of which copies reach 0.8 to 0.9."""
OF_LINK = 0.7
"""Fraction of declared gb_s, or of rate_gbit_s."""

_IN_WORDS: dict[LinkKind, str] = {
    "in_node": "links in a node", "across_sockets": "links across sockets", "fabric": "links between nodes",
}  # fmt: skip


def findings(result: Result, topology: Topology) -> list[Finding]:
    """Slow components, the largest (node, then device, then link) first."""
    found = [*_devices(result), *_declared_devices(result, topology)]
    for kind in _IN_WORDS:
        found += [*_links(result, kind), *_declared_links(result, topology, kind)]
    order = ["node", "device", "link", "topology"]
    return sorted(found, key=lambda finding: order.index(finding.what))


def _devices(result: Result) -> Iterator[Finding]:
    texts_by_rank: dict[int, str] = {}
    for name in result.devices[0].all():
        rates = [device.all()[name] for device in result.devices]
        median = statistics.median(rates)
        for rank, rate in enumerate(rates):
            if rate < SLOW_DEVICE * median and rank not in texts_by_rank:
                unit = "GB/s of memory" if name == "memory" else f"GFLOP/s in {name}"
                texts_by_rank[rank] = f"is slow: {rate:.4g} {unit}, {rate / median:.0%} of the median {median:.4g}"
    nodes = {worker.node for worker in result.workers}
    for node in sorted(nodes):
        here = [worker for worker in result.workers if worker.node == node]
        slow = [worker for worker in here if worker.rank in texts_by_rank]
        if len(slow) == len(here) > 1 and len(nodes) > 1:
            yield Finding(
                "node", here[0].place, f"is slow: all its devices are; {slow[0].title} {texts_by_rank[slow[0].rank]}"
            )
            continue
        for worker in slow:
            yield Finding("device", worker.title, texts_by_rank[worker.rank])


def _declared_devices(result: Result, topology: Topology) -> Iterator[Finding]:
    device = topology.device
    declared = {name: (tflops, OF_PEAK) for name, tflops in device.peak_tflops.model_dump().items()}
    for name, rate in medians_of_devices(result).items():
        wanted, part = (device.memory_gb_s, OF_MEMORY) if name == "memory" else declared.get(name, (None, 0.0))
        key = "topology.device.memory_gb_s" if name == "memory" else f"topology.device.peak_tflops.{name}"
        reached = rate if name == "memory" else rate / 1000
        if wanted is not None and reached < part * wanted:
            text = f"= {wanted:g} is declared, and the median device reaches {reached:.3g}, under {part:.0%} of it"
            yield Finding("topology", key, text)


def _links(result: Result, kind: LinkKind) -> Iterator[Finding]:
    """Slow ends (all links of an end are slow, in one direction or both), then slow links between the others.

    Why by ends: in three nodes one bad card slows four of six directions, so the median over links is slow too; the
    median over each end's best link is not.
    """
    links = result.of_kind(kind)
    guilty: dict[int, list[str]] = {}
    directions: dict[str, Callable[[LinkFigures], int]] = {"sends": lambda x: x.source, "receives": lambda x: x.target}
    for verb, end_of in directions.items():
        best = {end: max(x.best_gb_s for x in links if end_of(x) == end) for end in {end_of(x) for x in links}}
        median = statistics.median(best.values()) if len(best) > 2 else 0.0
        slow = [end for end, rate in best.items() if rate < SLOW_LINK * median]
        for end in slow:
            text = f"{verb} {best[end]:.3g} GB/s at best, {best[end] / median:.0%} of the median"
            guilty.setdefault(end, []).append(text)
        links = [x for x in links if end_of(x) not in slow]
    for end, texts in sorted(guilty.items()):
        worker = result.workers[end]
        what, name = ("node", worker.place) if kind == "fabric" else ("device", worker.title)
        yield Finding(what, name, f"is slow in all its {_IN_WORDS[kind]}: it {' and '.join(texts)}")
    median = statistics.median(x.best_gb_s for x in links) if links else 0.0
    for link in links:
        if link.best_gb_s < SLOW_LINK * median:
            text = f"is slow: {link.best_gb_s:.3g} GB/s, {link.best_gb_s / median:.0%} of the median {median:.3g}"
            yield Finding("link", link_name(result, link), text)


def _declared_links(result: Result, topology: Topology, kind: LinkKind) -> Iterator[Finding]:
    declared, key = declared_gb_s(topology, kind)
    rates = [link.best_gb_s for link in result.of_kind(kind)]
    if declared is None or not rates:
        return
    median = statistics.median(rates)
    if median < OF_LINK * declared:
        text = f"= {declared:g} GB/s is declared, and the median of the {_IN_WORDS[kind]} is {median:.3g}"
        yield Finding("topology", key, f"{text}, under {OF_LINK:.0%} of it")


def declared_gb_s(topology: Topology, kind: LinkKind) -> tuple[float | None, str]:
    """Declared GB/s between two workers, in each direction, and its key in the topology."""
    if kind == "fabric":
        fabric = topology.fabric
        if fabric.gb_s is None and fabric.rate_gbit_s is not None:
            return fabric.rate_gbit_s / 8, "topology.fabric.rate_gbit_s / 8"
        return fabric.gb_s, "topology.fabric.gb_s"
    link = topology.links.in_node if kind == "in_node" else topology.links.across_sockets
    return link.gb_s, f"topology.links.{kind}.gb_s"


def medians_of_devices(result: Result) -> dict[str, float]:
    """Medians over devices: GFLOP/s by precision, and GB/s of memory."""
    names = result.devices[0].all()
    return {name: statistics.median(device.all()[name] for device in result.devices) for name in names}


def link_name(result: Result, link: LinkFigures) -> str:
    """Sender and receiver of a link, for messages."""
    source, target = result.workers[link.source], result.workers[link.target]
    if link.kind == "fabric":
        return f"{source.place} to {target.place}"
    return f"rank {link.source} to rank {link.target} in {source.place}"


def with_findings(result: Result, topology: Topology) -> Result:
    """The result with its findings."""
    return replace(result, findings=findings(result, topology))
