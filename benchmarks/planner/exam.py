"""The planner's step times against published ones, beside linear scaling and nominal alpha-beta.

    python benchmarks/planner/exam.py FILE.csv      # of the columns of benchmarks/planner/published/scaling.csv

The step on one device is given, where the file has it; the step on several is predicted with the shipped constants.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from exam_figures import HARD, Array, Errors, by_report, choices, each, stretches, worse_reports
from exam_networks import work
from exam_predictors import linear, nominal, planned
from exam_rows import Example, Row, examples, read

from leyden.trainer.hardware.schema import Device
from leyden.trainer.planner.cluster.machine import step_times
from leyden.trainer.planner.cluster.priors import Format, Priors, priors

FORMATS: dict[str, Format] = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16", "fp16": "fp16", "bf16": "bf16"}


def predictions(found: Sequence[Example], known: Priors) -> tuple[dict[str, Array], Array]:
    """Predicted stretches by predictor, and whether the planner's interval holds the measured one."""
    pairs = [planned(example, known) for example in found]
    measured = stretches(found)
    mean = np.array([stretch for stretch, _ in pairs])
    low, high = (np.array([getattr(f, end) / f.mean for _, f in pairs]) * mean for end in ("low", "high"))
    return (
        {"linear": each(found, linear), "nominal": each(found, nominal), "planner": mean},
        (low <= measured) & (measured <= high),
    )


def report(found: Sequence[Example], known: Priors) -> None:
    """Print the figures of rows whose step on one device is given."""
    measured = stretches(found)
    predicted, held = predictions(found, known)
    hard = measured > HARD
    print(f"{len(found)} rows, the step on one device given; {hard.sum()} with more than 10 % overhead")
    for name, values in predicted.items():
        print(f"  {name:8} {Errors.of(values, measured)}   overhead > 10 %: {Errors.of(values[hard], measured[hard])}")
    print(f"  80 % intervals hold {held.mean():.1%}; with more than 10 % overhead {held[hard].mean():.1%}")
    right = {name: choices(found, values) for name, values in predicted.items()}
    words = ", ".join(f"{name} in {chosen} of {cells} cells" for name, (cells, chosen) in right.items())
    print(f"  choice among strategies within 5 % of the best: {words}")
    print("  by publication:")
    for name, mask in by_report(found).items():
        medians = ", ".join(f"{who} {Errors.of(p[mask], measured[mask]).median:.1%}" for who, p in predicted.items())
        print(f"    {mask.sum():4} rows  {medians}, intervals hold {held[mask].mean():.0%}  {name}")
    for line in worse_reports(found, predicted):
        print(f"  more than 2 points worse than linear or nominal: {line}")


def prior_seconds(row: Row, known: Priors) -> float | None:
    """The step on one device from its arithmetic alone; None: the row does not say what is needed for it."""
    if row.precision not in FORMATS or None in (row.gflop, row.batch, row.peak_tflops, row.memory_gb_s):
        return None
    if row.metric != "samples_per_second":
        return None
    assert row.gflop is not None
    assert row.batch is not None
    shape, precision = work(row.model, row.parameters, row.gflop, row.precision, row.batch), FORMATS[row.precision]
    peaks = {precision: row.peak_tflops}
    device = Device.model_validate({"kind": "cuda", "peak_tflops": peaks, "memory_gb_s": row.memory_gb_s})
    return step_times(shape, device, precision, known).total


def without_a_step(rows: Sequence[Row], known: Priors) -> None:
    """Print the errors of steps on one device, from FLOP and peak, and from the same model on another device."""
    alone = [row for row in rows if row.devices == 1]
    pairs = [(guess, row.batch / row.value) for row in alone if (guess := prior_seconds(row, known)) and row.batch]
    guessed, measured = (np.array(column) for column in zip(*pairs, strict=True)) if pairs else ([], [])
    print(f"{len(pairs)} steps on one device from their arithmetic: {Errors.of(np.array(guessed), np.array(measured))}")
    same: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in alone:
        if row.metric == "samples_per_second" and row.memory_gb_s:
            same[row.model, row.precision].append(row)
    scaled, own = [], []
    for group in same.values():
        for row in group:
            assert row.memory_gb_s is not None
            others = [r.value / (r.memory_gb_s or 1) for r in group if r.device != row.device]
            if others:
                scaled.append(1 / (float(np.median(others)) * row.memory_gb_s))
                own.append(1 / row.value)
    print(f"{len(own)} from the same model on other devices: {Errors.of(np.array(scaled), np.array(own))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    rows = read(parser.parse_args().file)
    found = list(examples(rows))
    report([example for example in found if example.row.provenance == "read"], priors())
    noted = [example for example in found if example.row.provenance != "read"]
    if noted:
        print(f"\n{len(noted)} rows from notes or memory, apart:")
        for example in noted:
            stretch, _ = planned(example, priors())
            speedup = example.row.devices / np.array([stretch, example.stretch])
            print(f"  {example.row.id}: speedup {speedup[0]:.2f}, measured {speedup[1]:.2f}")
    print()
    without_a_step(rows, priors())


if __name__ == "__main__":
    main()
