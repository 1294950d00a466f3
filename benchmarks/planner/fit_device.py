"""The constants of a device in conf/planner/priors.yaml, fitted to the throughput of one device in singles.csv.

    python benchmarks/planner/fit_device.py

Fitted with them is what the stand-ins of exam_networks.py move for their arithmetic. The share of the memory bandwidth
is set, not fitted: for one network it cannot be told from the bytes. Rows of scaling.csv are predicted, not fitted.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from exam_figures import Array, Errors
from exam_networks import FAMILIES, Family, depth, element_bytes, family
from exam_rows import PUBLISHED

from leyden.trainer.planner.cluster.priors import Priors, priors

KINDS = ("plain", "residual", "grouped", "transformer")
FORMATS = ("fp32", "tf32", "half")
LARGEST = 0.8
"""Of the peak, in large products: what is beyond it comes from fewer bytes."""
STEPS = (1.3, 1.1, 1.03, 1.01)
"""Factors by which a value is changed, from coarse to fine."""


@dataclass(frozen=True)
class Singles:
    """Steps on one device, as columns."""

    kinds: Array
    formats: Array
    flop_s: Array
    """Seconds of the arithmetic at the peak."""
    moved_s: Array
    """Seconds that one element a FLOP takes at the nominal bandwidth."""
    update_s: Array
    operations: Array
    seconds: Array
    """Measured."""


def singles(file: str, throughput: str, batch: str) -> Singles:
    with (PUBLISHED / file).open(newline="", encoding="utf-8") as text:
        return Singles(*map(np.array, zip(*_columns(csv.DictReader(text), throughput, batch), strict=True)))


def _columns(rows: Iterator[dict[str, str]], throughput: str, batch: str) -> Iterator[tuple[float, ...]]:
    needed = ("train_gflop_per_sample", "gpu_peak_tflops_for_precision", "gpu_mem_gbps", throughput, batch)
    for row in rows:
        precision = {"amp": "half", "fp16": "half", "bf16": "half"}.get(row["precision"], row["precision"])
        alone = row.get("gpus_total", "1") == "1" and row.get("metric", "samples_per_second") == "samples_per_second"
        if row.get("mode") == "infer" or row["note"].startswith("EXCLUDE") or not alone:
            continue
        if precision not in FORMATS or not all(row[name] for name in needed):
            continue
        gflop, peak, bandwidth, rate, samples = (float(row[name]) for name in needed)
        of: Family = family(row["model"])
        flop = gflop * 1e9 * samples
        yield (
            KINDS.index(of.kind), FORMATS.index(precision), flop / peak / 1e12,
            flop * element_bytes(row["precision"]) / bandwidth / 1e9,
            20.0 * float(row["params_million"]) * 1e6 / bandwidth / 1e9, of.kernels * depth(row["model"]),
            samples / rate,
        )  # fmt: skip


def predicted(values: Array, rows: Singles, memory: float) -> Array:
    """Seconds: efficiencies of the formats, elements a FLOP of the families, and a launch."""
    products = rows.flop_s / values[:3][rows.formats.astype(int)]
    moved = rows.moved_s * values[3:7][rows.kinds.astype(int)] / memory
    return np.maximum(products + moved, rows.operations * values[7]) + rows.update_s / memory


def fit(rows: Singles, start: Array, memory: float) -> Array:
    """Coordinate descent of the mean |ln(predicted / measured)|, with a weak pull to the start."""

    def loss(values: Array) -> float:
        pull = 0.01 * np.mean(np.log(values / start) ** 2)
        return float(np.mean(np.abs(np.log(predicted(values, rows, memory) / rows.seconds))) + pull)

    values, best = start.copy(), loss(start)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for index in range(len(values)):
                for factor in (step, 1 / step):
                    trial = values.copy()
                    trial[index] *= factor
                    if trial[:3].max() <= LARGEST and loss(trial) < best - 1e-9:
                        values, best, improved = trial, loss(trial), True
    return values


def shipped(known: Priors) -> Array:
    """What is in use, in the order of `predicted`."""
    efficiency = known.compute_efficiency.value
    families: Sequence[Family] = (*(found for _, found in FAMILIES), Family())
    elements = [next(found.elements_per_flop for found in families if found.kind == kind) for kind in KINDS]
    formats = [efficiency["fp32"], efficiency["tf32"], efficiency["fp16"]]
    return np.array([*formats, *elements, known.launch_us.value * 1e-6])


def main() -> None:
    known = priors()
    memory = known.memory_efficiency.value
    rows, others = (
        singles("singles.csv", "samples_per_second", "batch"),
        singles("scaling.csv", "value", "batch_per_gpu"),
    )
    usual = np.array([0.7, 0.5, 0.5, 0.003, 0.01, 0.025, 0.004, 10e-6])
    for what, values in (("fitted", fit(rows, usual, memory)), ("shipped", shipped(known))):
        print(what, dict(zip([*FORMATS, *KINDS, "launch"], values.tolist(), strict=True)))
        print(f"  {Errors.of(predicted(values, rows, memory), rows.seconds)} of {len(rows.seconds)} rows fitted")
        print(f"  {Errors.of(predicted(values, others, memory), others.seconds)} of {len(others.seconds)} others")


if __name__ == "__main__":
    main()
