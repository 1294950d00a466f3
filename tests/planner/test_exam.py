"""The planner's exam on published measurements: rows, predictors and figures, and the figures that it reaches."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fit
import numpy as np
import pytest
from exam_figures import Errors, choices, stretches, worse_reports
from exam_networks import family, shares
from exam_predictors import compute_times, linear, nominal, planned
from exam_rows import PUBLISHED, Example, examples, read
from fit import given, latencies, leave_one_source_out, link_efficiencies
from folders import ROOT

from leyden.trainer.planner.cluster.priors import priors

EXAM = ROOT / "benchmarks/planner/exam.py"
HEADER = (PUBLISHED / "scaling.csv").read_text().partition("\n")[0]


def line(name: str, devices: int, value: float, **cells: object) -> str:
    """A row of scaling.csv: 100 M parameters in fp32, a step of 1 s on one device of 64 samples."""
    row: dict[str, object] = {
        "id": f"{name}-g{devices}", "system": "mine", "source": "Somewhere@1 README", "provenance": "read",
        "model": "resnet50", "params_million": 100, "train_gflop_per_sample": 24, "precision": "fp32",
        "batch_per_gpu": 64, "gpu": "V100", "gpu_peak_tflops_for_precision": 15.7, "gpu_mem_gbps": 900,
        "gpus_per_node": devices, "nodes": 1, "gpus_total": devices, "intra_node_link": "PCIe 3.0 x16",
        "intra_GBps": 10, "inter_node_link": "none", "inter_GBps_per_node": "", "strategy": "allreduce ddp",
        "metric": "samples_per_second", "value": value, "note": "", **cells,
    }  # fmt: skip
    return ",".join(str(row[name]) for name in HEADER.split(","))


def write(folder: Path, *lines: str) -> list[Example]:
    file = folder / "mine.csv"
    file.write_text("\n".join([HEADER, *lines]) + "\n")
    return list(examples(read(file)))


def test_rows_are_paired_with_the_step_on_one_device(tmp_path: Path) -> None:
    found = write(
        tmp_path, line("a", 1, 64), line("a", 2, 100), line("a+split", 4, 128),
        line("b", 1, 10, metric="hours"), line("b", 2, 6, metric="hours"), line("c", 1, 1, metric="speedup"),
        line("c", 8, 4, metric="speedup"), line("a", 8, 9, note="EXCLUDE: broken"), line("d", 8, 9),
    )  # fmt: skip
    assert [(e.row.id, e.stretch) for e in found] == [
        ("a-g2", 1.28), ("a+split-g4", 2.0), ("b-g2", pytest.approx(1.2)), ("c-g8", 2.0),
    ]  # fmt: skip
    assert [e.alone_seconds for e in found] == [1.0, 1.0, None, None]
    assert {e.row.report for e in found} == {"Somewhere"}


def test_predictions_of_a_row(tmp_path: Path) -> None:
    """Nominal: 2 x 1/2 x 400 MB at 10 GB/s after a step of 1 s, and two messages."""
    (pair,) = write(tmp_path, line("a", 1, 64), line("a", 2, 100))
    assert linear(pair) == 1.0
    assert nominal(pair) == pytest.approx(1.04 + 2 * 3e-6)
    times = compute_times(pair)
    assert (times.total, *times.ready[-1]) == pytest.approx((1.0, 100e6, times.backward))
    stretch, forecast = planned(pair, priors())
    assert 1.0 < stretch < nominal(pair) + 0.1
    assert forecast.low < forecast.mean < forecast.high


@pytest.mark.parametrize("model", ["vgg16", "bert_base", "resnext50", "resnet50", "face"])
def test_a_stand_in_has_all_parameters_and_all_time(model: str) -> None:
    assert np.sum([*shares(family(model))], axis=0) == pytest.approx([1.0, 1.0])


def test_figures_of_errors() -> None:
    errors = Errors.of(np.array([1.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0]))
    assert (errors.rows, errors.median, errors.factor) == (3, 0.5, pytest.approx(2 ** (2 / 3)))


def test_choice_among_strategies_of_one_configuration(tmp_path: Path) -> None:
    found = write(
        tmp_path, line("a", 1, 64), line("a", 2, 100), line("a+servers", 2, 120, strategy="parameter_server"),
    )  # fmt: skip
    assert choices(found, np.array([1.1, 1.2])) == (1, 0)
    assert choices(found, np.array([1.2, 1.1])) == (1, 1)
    assert choices(found[:1], np.array([1.2])) == (0, 0)


def test_a_source_that_is_predicted_worse_is_named(tmp_path: Path) -> None:
    found = write(tmp_path, line("a", 1, 64), line("a", 2, 128))
    predicted = {"linear": np.array([1.0]), "nominal": np.array([1.1]), "planner": np.array([1.05])}
    assert worse_reports(found, predicted) == ["Somewhere: 5.0% against 0.0% (1 rows)"]
    assert not worse_reports(found, {**predicted, "planner": np.array([1.01])})


def test_shipped_link_constants_are_those_of_the_measurements() -> None:
    known = priors()
    assert {name: round(value, 2) for name, value, _ in link_efficiencies()} == known.link_efficiency.value
    assert {name: round(value, 1) for name, value, _ in latencies()} == known.link_latency_us.value


# what the fits choose from the whole grid is in the smaller one
GRIDS = [pytest.param(fit.CONTENTION, fit.HOST_S_PER_GB, marks=pytest.mark.campaign), ((0.3, 0.4), (0.6, 0.8))]


@pytest.mark.slow
@pytest.mark.parametrize(("contention", "host"), GRIDS, ids=["whole grid", "near the best"])
def test_figures_without_the_source_of_a_row(
    contention: Sequence[float], host: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "CONTENTION", contention)
    monkeypatch.setattr(fit, "HOST_S_PER_GB", host)
    found = given()
    measured, left = stretches(found), leave_one_source_out(found, priors())
    every, hard = Errors.of(left.predicted, measured), measured > 1.1
    overhead = Errors.of(left.predicted[hard], measured[hard])
    assert (every.median <= 0.04, every.factor <= 1.08) == (True, True), every
    assert (overhead.median <= 0.09, overhead.factor <= 1.14) == (True, True), overhead
    assert 0.7 <= left.held.mean() <= 0.9
    cells, right = choices(found, left.predicted)
    assert right >= 0.9 * cells > 0


def test_recalled_speedups_of_one_weird_trick() -> None:
    found = [e for e in examples(read(PUBLISHED / "scaling.csv")) if e.row.id.startswith("owt")]
    predicted = np.array([planned(example, priors())[0] for example in found])
    assert len(found) == 6
    assert np.abs(stretches(found) / predicted - 1).max() < 0.1


def test_the_exam_takes_any_file_of_these_columns(tmp_path: Path) -> None:
    write(tmp_path, line("a", 1, 64), line("a", 2, 100), line("a", 4, 180))
    done = subprocess.run([sys.executable, EXAM, tmp_path / "mine.csv"], capture_output=True, text=True, check=True)
    assert "2 rows, the step on one device given; 2 with more than 10 % overhead" in done.stdout
    assert "1 steps on one device from their arithmetic" in done.stdout
