"""The topology with measured figures in place of declared ones, for the planner."""

import statistics
from collections.abc import Iterator
from datetime import date
from typing import Any

from ...hardware.discovery.to_yaml import line, spell_yaml
from ...hardware.schema import Topology
from .findings import medians_of_devices
from .results import CollectiveFigures, LinkKind, Result

Figures = dict[str, float]


def median_figures(result: Result) -> Figures:
    """Medians, by dotted key below `topology`."""
    rates = medians_of_devices(result)
    found = {f"device.peak_tflops.{name}": rate / 1000 for name, rate in rates.items() if name != "memory"}
    found["device.memory_gb_s"] = rates["memory"]
    keys: dict[LinkKind, str] = {
        "in_node": "links.in_node", "across_sockets": "links.across_sockets", "fabric": "fabric",
    }  # fmt: skip
    for kind, key in keys.items():
        links = result.of_kind(kind)
        if links:
            found[f"{key}.gb_s"] = statistics.median(link.best_gb_s for link in links)
            found[f"{key}.latency_us"] = statistics.median(link.latency_us for link in links)
    return {key: float(f"{value:.4g}") for key, value in found.items()}


def median_collectives(result: Result, nodes: int) -> list[dict[str, Any]]:
    """Times by size: over all workers, and the medians over the nodes of those inside each."""
    kinds: dict[tuple[str, str, int], list[CollectiveFigures]] = {}
    for each in result.collectives:
        scope = "all" if nodes > 1 and each.workers == len(result.workers) else "node"
        kinds.setdefault((each.name, scope, each.workers), []).append(each)
    found: list[dict[str, Any]] = []
    for (name, scope, workers), figures in kinds.items():
        sizes = sorted(set.intersection(*(set(each.seconds) for each in figures)))
        ms = [1e3 * statistics.median(each.seconds[size] for each in figures) for size in sizes]
        rounded = [float(f"{value:.4g}") for value in ms]
        found.append({"name": name, "scope": scope, "workers": workers, "bytes": sizes, "ms": rounded})
    return found


def as_yaml(topology: Topology, result: Result, day: date) -> str:
    """A file for a folder topology/: declared keys, and measured ones with their source in a comment."""
    figures = median_figures(result)
    values = topology.model_dump(exclude_none=True, exclude_defaults=True)
    values |= {"launcher": topology.launcher, "nodes": topology.nodes, "devices_per_node": topology.devices_per_node}
    for key, value in figures.items():
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    values["collectives"] = median_collectives(result, topology.nodes)
    head = [
        f"# Figures as `leyden doctor` measured them on {day.isoformat()}; peak_tflops are those of a large product.",
        "# Saved as FOLDER/topology/NAME.yaml it is used by: leyden --config-dir FOLDER topology=NAME",
    ]
    source = f"[measured] by leyden doctor on {day.isoformat()}"
    return "\n".join([*head, *_lines(values, figures, source)]) + "\n"


def _lines(values: dict[str, Any], figures: Figures, source: str, prefix: str = "", depth: int = 0) -> Iterator[str]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            if value:
                yield f"{'  ' * depth}{name}:"
                yield from _lines(value, figures, source, f"{key}.", depth + 1)
        elif name == "collectives":
            if value:
                yield f"{name}:  # {source}"
                yield from (f"  - {spell_yaml(each)}" for each in value)
        else:
            yield line(name, value, source if key in figures else "", depth)
