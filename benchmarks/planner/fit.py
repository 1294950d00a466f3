"""The constants of conf/planner/priors.yaml that are fitted to published measurements, printed anew.

python benchmarks/planner/fit.py
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from exam_figures import Array, by_report, stretches
from exam_predictors import compute_times, planned, workers_per_node
from exam_rows import PUBLISHED, Example, examples, read

from leyden.trainer.core.transfers import Placement
from leyden.trainer.planner.cluster.priors import Priors, priors
from leyden.trainer.planner.cluster.simulation import skew

CONTENTION = (0.2, 0.3, 0.4, 0.5, 0.6)
HOST_S_PER_GB = (0.6, 0.8, 1.0, 1.3)
IN_NODE = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03)
NODES = (0.0, 0.01, 0.02, 0.03)
JITTER_MS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Ends at 6: more fits slightly better still, and is more than processes of one host delay each other."""
STEP = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08)
SENT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
WANTED = 0.8
QUANTILE = 1.2816


def changed(known: Priors, **values: Any) -> Priors:
    """The priors with other values."""
    return known.model_copy(
        update={name: getattr(known, name).model_copy(update={"value": value}) for name, value in values.items()}
    )


@dataclass(frozen=True)
class Candidate:
    """Values of the constants that scaling.csv decides."""

    contention: float
    host_s_per_gb: float
    in_node: float
    nodes: float
    host_jitter_ms: float

    def priors(self, known: Priors) -> Priors:
        return changed(
            known, contention=self.contention, host_s_per_gb=self.host_s_per_gb, host_jitter_ms=self.host_jitter_ms,
            synchronization={"in_node": self.in_node, "nodes": self.nodes},
        )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Predictions of every candidate for every row."""

    candidates: Sequence[Candidate]
    predicted: Array
    """(candidates, rows), as stretches."""
    sent: Array
    """The same, of the share of the step in which something is sent."""

    @classmethod
    def of(cls, found: Sequence[Example], known: Priors) -> "Grid":
        waits = {
            what: _skews(found, Candidate(0.0, 1.0, *(1.0 if what == name else 0.0 for name in _WAITS)), known)
            for what in _WAITS
        }
        candidates, predicted, sent = [], [], []
        for contention, host in product(CONTENTION, HOST_S_PER_GB):
            calm = Candidate(contention, host, 0.0, 0.0, 0.0).priors(known)
            pairs = [planned(example, calm) for example in found]
            means = np.array([stretch for stretch, _ in pairs])
            busy = np.array([forecast.sent / forecast.mean for _, forecast in pairs]) * means
            for values in product(IN_NODE, NODES, JITTER_MS):
                candidates.append(Candidate(contention, host, *values))
                predicted.append(means + sum(v * waits[w] for v, w in zip(values, _WAITS, strict=True)))
                sent.append(np.minimum(busy / predicted[-1], 1.0))
        return cls(candidates, np.array(predicted), np.array(sent))

    def best(self, measured: Array, mask: Array) -> int:
        """The candidate with the smallest mean |ln(predicted / measured)| of some rows."""
        return int(np.abs(np.log(self.predicted[:, mask] / measured[mask])).mean(axis=1).argmin())


_WAITS = ("in_node", "nodes", "host_jitter_ms")


def _skews(found: Sequence[Example], unit: Candidate, known: Priors) -> Array:
    """The wait for the slowest worker, relative to the step on one device, at one unit of a constant."""
    values = []
    for example in found:
        times = compute_times(example)
        placement = Placement(example.row.devices, workers_per_node(example.row))
        every = 10.0 if "every 10" in example.row.strategy else 1.0
        values.append(skew(times, every, placement, unit.priors(known)) / times.total)
    return np.array(values)


def widths(residuals: Array, sent: Array) -> tuple[float, float]:
    """The narrowest (step, communication) whose intervals hold four fifths of the residuals."""
    found = []
    for step, communication in product(STEP, SENT):
        width = QUANTILE * np.hypot(step, communication * sent)
        if (np.abs(residuals) <= width).mean() >= WANTED:
            found.append((width.mean(), step, communication))
    return min(found)[1:] if found else (STEP[-1], SENT[-1])


@dataclass(frozen=True)
class LeftOut:
    """Predictions of each row by constants that were fitted without its publication."""

    predicted: Array
    held: Array
    candidates: dict[str, Candidate]


def leave_one_source_out(found: Sequence[Example], known: Priors) -> LeftOut:
    """Fit the constants without one publication, predict its rows; for each."""
    grid, measured = Grid.of(found, known), stretches(found)
    predicted, held = np.zeros(len(found)), np.zeros(len(found), dtype=bool)
    chosen = {}
    for name, mask in by_report(found).items():
        best = grid.best(measured, ~mask)
        chosen[name] = grid.candidates[best]
        residuals = np.log(grid.predicted[best] / measured)
        step, communication = widths(residuals[~mask], grid.sent[best][~mask])
        predicted[mask] = grid.predicted[best][mask]
        held[mask] = np.abs(residuals[mask]) <= QUANTILE * np.hypot(step, communication * grid.sent[best][mask])
    return LeftOut(predicted, held, chosen)


def given() -> list[Example]:
    """The published rows but those from notes or memory."""
    found = examples(read(PUBLISHED / "scaling.csv"))
    return [example for example in found if example.row.provenance == "read"]


def link_efficiencies() -> Iterator[tuple[str, float, int]]:
    """Of each class: the geometric mean over systems of the largest bus bandwidth relative to the nominal rate."""
    best: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    with (PUBLISHED / "allreduce.csv").open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            rate, nominal = row["busbw_GBps"], row["nominal_GBps_per_node"] or _usual(row["link"])
            if rate and nominal and float(row["bytes"] or 1e9) >= 1 << 24:
                share = min(float(rate) / float(nominal), 1.0)  # trees and switches that reduce pass the wire's
                systems = best[_link_class(row)]
                systems[row["system"]] = max(systems[row["system"]], share)
    for name, systems in sorted(best.items()):
        yield name, float(np.exp(np.mean(np.log(list(systems.values()))))), len(systems)


def _usual(link: str) -> float | None:
    return 31.5 if "no P2P" in link else 15.75 if "SHM" in link else None


def _link_class(row: dict[str, str]) -> str:
    if int(row["nodes"]) > 1 and "NVLink5" not in row["link"]:
        return "tcp" if re.search("TCP|FasTrak|Ethernet(?!.*RoCE)", row["link"]) else "rdma"
    if "NVLink" in row["link"] or "Infinity" in row["link"]:
        return "nvlink"
    return "host" if re.search("host memory|no P2P", row["link"]) else "pcie"


def latencies() -> Iterator[tuple[str, float, int]]:
    """Median microseconds a message of a ring's all-reduce of at most 1 KiB, by place."""
    found: dict[str, list[float]] = defaultdict(list)
    with (PUBLISHED / "allreduce.csv").open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            if row["latency_us"] and row["bytes"] and int(row["bytes"]) <= 1024:
                place = "in_node" if row["nodes"] == "1" else "fabric"
                found[place].append(float(row["latency_us"]) / (2 * (int(row["gpus"]) - 1)))
    for place, values in found.items():
        yield place, float(np.median(values)), len(values)


def main() -> None:
    for name, value, systems in link_efficiencies():
        print(f"link_efficiency {name}: {value:.2f}   ({systems} systems)")
    for name, value, rows in latencies():
        print(f"link_latency_us {name}: {value:.1f}   ({rows} rows)")
    found, known = given(), priors()
    grid, measured = Grid.of(found, known), stretches(found)
    best = grid.best(measured, np.ones(len(found), dtype=bool))
    print(grid.candidates[best], f"({len(found)} rows)")
    left = leave_one_source_out(found, known)
    residuals = np.log(left.predicted / measured)
    print("interval measured, communication:", widths(residuals, grid.sent[best]))
    for name, candidate in left.candidates.items():
        print(f"  without {name}: {candidate}")


if __name__ == "__main__":
    main()
