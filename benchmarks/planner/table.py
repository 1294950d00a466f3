"""The table of the planner's errors in docs/figures.md: each row predicted by constants fitted without its source.

python benchmarks/planner/table.py      # writes benchmarks/results/planner.json; then python benchmarks/figures.py
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from exam import prior_seconds
from exam_figures import HARD, Array, Errors, choices, each, stretches, worse_reports
from exam_predictors import linear, nominal, planned
from exam_rows import PUBLISHED, Example, examples, read
from fit import given, leave_one_source_out

from leyden.trainer.planner.cluster.priors import priors

ROOT = Path(__file__).parents[2]
ROW = dict[str, object]
NAMES = {
    "linear": "linear scaling",
    "nominal": "alpha-beta at nominal rates, nothing overlaps",
    "planner": "the planner, fitted without the row's source",
}


def floor(found: Sequence[Example]) -> tuple[Array, Array]:
    """The same configuration as other publications measured it, and as this one did."""
    cells: dict[tuple[object, ...], list[Example]] = defaultdict(list)
    for example in found:
        row = example.row
        cells[row.model, row.precision, row.batch, row.device, row.devices, row.nodes, row.strategy].append(example)
    pairs = [
        (float(np.median(others)), example.stretch)
        for group in cells.values()
        for example in group
        if (others := [other.stretch for other in group if other.row.report != example.row.report])
    ]
    return np.array([other for other, _ in pairs]), np.array([own for _, own in pairs])


def line(what: str, predicted: Array, measured: Array) -> ROW:
    errors = Errors.of(predicted, measured)
    return {
        "what": what, "rows": errors.rows, "median": errors.median, "ninth": errors.ninth, "factor": errors.factor,
    }  # fmt: skip


def rows() -> Iterator[ROW]:
    found, known = given(), priors()
    measured, left = stretches(found), leave_one_source_out(found, known)
    predicted = {"linear": each(found, linear), "nominal": each(found, nominal), "planner": left.predicted}
    hard = measured > HARD
    for mask, of in ((hard | True, ""), (hard, ", more than 10 % overhead")):
        for name, what in NAMES.items():
            yield line(what + of, predicted[name][mask], measured[mask])
    yield line("the same configuration in another report", *floor(found))
    yield from _shares(found, predicted, left.held)
    worse = worse_reports(found, predicted)
    yield {
        "what": "sources of which its median is more than 2 points above linear's or alpha-beta's",
        "rows": len(worse),
    }
    alone = [row for row in read(PUBLISHED / "scaling.csv") if row.devices == 1]
    pairs = [(guess, row.batch / row.value) for row in alone if (guess := prior_seconds(row, known)) and row.batch]
    yield line("one device: FLOP and peak alone", *(np.array(column) for column in zip(*pairs, strict=True)))
    noted = [e for e in examples(read(PUBLISHED / "scaling.csv")) if e.row.id.startswith("owt")]
    speedups = np.array([planned(example, known)[0] for example in noted])
    yield line("speedups of one weird trick, from notes", speedups, stretches(noted))


def _shares(found: Sequence[Example], predicted: Mapping[str, Array], held: Array) -> Iterator[ROW]:
    yield {"what": "rows that its 80 % intervals hold", "rows": len(held), "share": float(held.mean())}
    hard = held[stretches(found) > HARD]
    yield {"what": "the same, more than 10 % overhead", "rows": len(hard), "share": float(hard.mean())}
    for name, values in predicted.items():
        cells, right = choices(found, values)
        what = f"cells in which the strategy chosen by {NAMES[name]} is within 5 % of the best"
        yield {"what": what, "rows": cells, "share": right / cells}


TEXT = (
    "Time of a step on several devices as published, predicted from the published step on one device: 710 rows of 18 "
    "sources; factor is exp(mean |ln(predicted / measured)|). The constants of a row are fitted to the other sources "
    "(benchmarks/planner/fit.py), while the form of the model was chosen with all of them in view; a network is a "
    "stand-in of its family there, whose layers a plan counts. In the choice each strategy's own step on one device "
    "is given. See docs/planner-model.md."
)
COLUMNS = {
    "rows": ("rows", "d"), "median": ("median error", ".1%"), "ninth": ("90th percentile", ".1%"),
    "factor": ("factor", ".3f"), "share": ("share", ".0%"),
}  # fmt: skip


def main() -> None:
    sys.path.append(str(ROOT / "benchmarks"))
    from measurement import write_subject

    command = "python benchmarks/planner/table.py"
    file = ROOT / "benchmarks" / "results" / "planner.json"
    write_subject(file, "The planner against published step times", TEXT, COLUMNS, command, list(rows()))


if __name__ == "__main__":
    main()
