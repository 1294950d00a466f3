"""Predictions of a published row's step relative to the step on one device."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from exam_networks import family, gradient_bytes, shares
from exam_rows import Example, Row

from leyden.trainer.core.transfers import Placement, Transfer
from leyden.trainer.planner.cluster.links import Channel, ClusterLinks
from leyden.trainer.planner.cluster.priors import LinkClass, Priors
from leyden.trainer.planner.cluster.simulation import forecast
from leyden.trainer.planner.quantities import ComputeTimes, StepForecast

BUCKET_BYTES = 25e6
_GB, _US = 1e9, 1e-6
USUAL_EFFICIENCY = 0.35
"""Share of the peak, where a report has ratios alone."""
USUAL_SECONDS = 0.35
"""Of a step, where it does not even print the batch: the median of those that print both."""
UNSTATED = {"inside": 15.75, "between": 12.5}
"""GB/s where a report does not name the link: PCIe 3.0, and 100 Gbit/s."""


def linear(example: Example) -> float:
    return 1.0


def nominal(example: Example) -> float:
    """Alpha-beta at nominal rates: one ring over everything, at the rate of its slowest link, with no overlap."""
    row = example.row
    rate = min(_inside(row), _between(row)) if row.nodes > 1 else _inside(row)
    sent = 2 * (row.devices - 1) / row.devices * row.parameters * gradient_bytes(row)
    latency = 2 * (row.devices - 1) * (5e-6 if row.nodes > 1 else 3e-6)
    return 1.0 + (sent / rate / _GB + latency) / alone_seconds(example)


def planned(example: Example, priors: Priors) -> tuple[float, StepForecast]:
    """The planner's mean, relative to the step on one device, and its whole forecast."""
    times = compute_times(example)
    placement = Placement(_workers(example.row), workers_per_node(example.row))
    found = forecast(times, list(transfers(example.row, placement)), placement, links(example.row, priors), priors)
    return found.mean / times.total, found


def alone_seconds(example: Example) -> float:
    """The step on one device; of reports that print ratios alone, by its arithmetic."""
    known = example.alone_seconds
    if known is not None:
        return known
    row = example.row
    if row.batch is None or row.gflop is None or row.peak_tflops is None:
        return USUAL_SECONDS
    return row.gflop * row.batch / (row.peak_tflops * 1e3 * USUAL_EFFICIENCY)


def compute_times(example: Example) -> ComputeTimes:
    """The measured step, divided as training usually is: forward a third, the update by its bytes."""
    row, total = example.row, alone_seconds(example)
    update = min(5 * 4 * row.parameters / (0.8 * (row.memory_gb_s or 300.0) * _GB), 0.2 * total)
    forward, backward = (total - update) / 3, (total - update) * 2 / 3
    ready, elements, time = [], 0.0, 0.0
    for share, spent in shares(family(row.model)):
        elements, time = elements + share * row.parameters, time + spent
        ready.append((round(elements), time * backward))
    return ComputeTimes(forward, backward, update, tuple(ready), "measured")


def _workers(row: Row) -> int:
    return row.devices


def workers_per_node(row: Row) -> int:
    return -(-row.devices // row.nodes)


def transfers(row: Row, placement: Placement) -> Iterator[Transfer]:
    """What the strategy of a row sends, in its own words."""
    words = row.strategy
    if words.startswith("parameter_server") and "or allreduce" not in words:
        yield from _servers(row, placement)
    elif words.startswith("hybrid"):
        yield from _divided_head(row, placement)
    else:
        yield from _buckets(row, placement, row.parameters, 0.0, "no overlap" not in words)


def _buckets(row: Row, placement: Placement, elements: float, before: float, overlap: bool) -> Iterator[Transfer]:
    """All-reduces of buckets, each when its gradients are there, or of everything after backward."""
    size = gradient_bytes(row)
    if not overlap:
        yield placement.all_reduce("gradients", "update", elements * size)
        return
    count = max(1, round(elements * size / BUCKET_BYTES))
    for index in range(count):
        ready = round(before + elements * (index + 1) / count)
        yield placement.all_reduce(
            "gradients", "backward", elements * size / count, overlaps=("backward",), after_gradients=ready
        )


def _servers(row: Row, placement: Placement) -> Iterator[Transfer]:
    """Gradients to servers as they come, parameters back before their layers need them in the next forward.

    TensorFlow keeps a variable on one server, and each device fetches it, unless nodes have replicas; others divide
    tensors among the servers, and a node is one client.
    """
    whole = any(word in row.strategy for word in ("variables", "replicated", "TensorFlow"))
    every = 10.0 if "every 10" in row.strategy else 1.0
    by_device = row.nodes == 1 or (whole and "replicated" not in row.strategy)
    clients = placement if by_device else Placement(row.nodes, 1)
    size = row.parameters * gradient_bytes(row)
    count = max(1, round(size / BUCKET_BYTES))
    for index in range(count):
        piece, ready = size / count, round(row.parameters * (index + 1) / count)
        largest = max(1.0 / row.nodes, family(row.model).largest if whole else 0.0) if row.nodes > 1 else 1.0
        shards = [piece * largest, *[piece * (1 - largest) / max(row.nodes - 1, 1)] * (row.nodes - 1)]
        common: dict[str, Any] = {"every": every, "after_gradients": ready}
        yield clients.with_servers("gradients", "backward", shards, overlaps=("backward",), **common)
        overlaps = ("update", "next forward")
        yield clients.with_servers(
            "parameters", "update", shards, overlaps=overlaps, needed_by="next forward", **common
        )


def _divided_head(row: Row, placement: Placement) -> Iterator[Transfer]:
    """Head over all workers: activations of the whole batch to each; the rest is averaged."""
    of = family(row.model)
    features = {"plain": 9216}.get(of.kind, 512)
    batch, workers = row.batch or 128.0, placement.workers
    sent = (workers - 1) * batch * features * gradient_bytes(row)
    for phase in ("forward", "backward"):
        whole = workers / (workers - 1) * sent
        moved = placement.all_reduce("inputs of the head", phase, whole / 2, needed_by=phase)
        yield replace(moved, pattern="pairs")
    head = of.head * row.parameters
    yield from _buckets(row, placement, row.parameters - head, head, True)


def _inside(row: Row) -> float:
    return row.inside_gb_s or UNSTATED["inside"]


def _between(row: Row) -> float:
    return row.between_gb_s or UNSTATED["between"]


def link_class(row: Row) -> tuple[LinkClass, LinkClass]:
    """Classes of the link inside a node, and between nodes, from the words of the report."""
    inside: LinkClass = "nvlink" if "NVLink" in row.inside and "bridges" not in row.inside else "pcie"
    if "no P2P" in row.inside or (inside == "pcie" and row.device.startswith("RTX")):
        inside = "host"
    tcp = "TCP" in row.strategy or ("Ethernet" in row.between and "RDMA" not in row.strategy)
    return inside, "tcp" if tcp else "rdma"


def links(row: Row, priors: Priors) -> ClusterLinks:
    """The links of a row at the rates that the priors expect."""
    inside, between = link_class(row)
    efficiency, latency = priors.link_efficiency.value, priors.link_latency_us.value
    two_sockets = workers_per_node(row) > 4 and ("two sockets" in row.inside or "2 sockets" in row.inside)
    across = Channel(_inside(row) * efficiency["host"] * _GB, latency["in_node"] * _US, "prior")
    return ClusterLinks(
        Channel(_inside(row) * efficiency[inside] * _GB, latency["in_node"] * _US, "prior"),
        Channel(_between(row) * efficiency[between] * _GB, latency["fabric"] * _US, "prior"),
        across if two_sockets else None,
        server_s_per_byte=priors.host_s_per_gb.value / _GB if "on GPU" not in row.strategy else 0.0,
        host_s_per_byte=priors.host_s_per_gb.value / _GB if "on CPU over" in row.strategy else 0.0,
        contention=priors.contention.value,
    )
