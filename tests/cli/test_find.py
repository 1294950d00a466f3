"""`leyden find`: the range test of learning rates, and the largest batch size that fits."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import TINY, rows, summary
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.trainer.cli.find.search import Probe, probes
from leyden.trainer.cli.main import main
from leyden.trainer.components.callbacks.lr_curve import LRCurve

QUICK = ["model=mlp", "model.hidden=[16]", "dataset.image_size=8"]


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return here


# learning rate


def test_the_range_test_of_a_training(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["steps=60", "low=1e-4", "high=100", "optimizer.lr_batch_size=32", "batch_size=64", "schedule=onecycle"]
    groups = "optimizer.groups=[{match: 'layers.*', lr_scale: 3}]"
    assert main(["find", "lr", *QUICK, *words, groups, "hydra.run.dir=out"]) == 0
    assert [path.name for path in here.iterdir()] == ["out"]
    told = capfd.readouterr().out
    found = json.loads((here / "out/lr_range_test.json").read_text())
    assert f"suggested: optimizer.lr={found['suggestion']:.2g}" in told
    assert "leyden eval" not in told
    assert 1e-4 < found["suggestion"] < found["lowest"] < found["diverged_at"] <= 100
    logged = [row for row in rows(here / "out") if row["range_test/lr"]]
    rates = [float(row["range_test/lr"]) for row in logged]
    assert rates[0] == pytest.approx(1e-4)
    assert all(after / before == pytest.approx(1e6 ** (1 / 59)) for before, after in pairwise(rates))
    # a group at three times the rate, which the batch of 64 doubles
    assert [float(row["lr"]) for row in logged] == pytest.approx([6 * rate for rate in rates])
    with Image.open(here / "out/lr_range_test.png") as picture:
        assert picture.size == (760, 460)
    events = EventAccumulator(str(here / "out"))
    events.Reload()
    assert "range_test/curve" in events.Tags()["images"]
    assert len(events.Scalars("range_test/loss")) == len(rates) == found["steps"]
    assert summary(here / "out")["status"] == "done"
    assert not (here / "out/checkpoints").exists()
    assert not {"val/acc", "test/acc"} & summary(here / "out")["metrics"].keys()
    for words in (["eval", "out"], ["resume", "out", "trainer.max_steps=90"]):
        assert main(words) == 2
        error = " ".join(capfd.readouterr().err.split())
        assert "is a finished range test of learning rates, which ends with lr_range_test.json and saves" in error
        assert "leyden resume" not in error


def test_a_loss_of_nan_ends_the_test_and_not_the_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    poison = "+callbacks.poison={_target_: training_examples.Poison}"
    assert main(["find", "lr", *QUICK, "steps=40", poison, "hydra.run.dir=out"]) == 0
    assert "no suggestion: train/loss falls nowhere" in capfd.readouterr().out
    assert json.loads((here / "out/lr_range_test.json").read_text())["steps"] == 6
    assert "NaN" not in (here / "out/summary.json").read_text()


INTERRUPTED = """
import os, signal, torch
from leyden.trainer.components.tasks.classification import Classification

class Stops:
    def on_step_end(self, state):
        if state.step == 10 and state.resumed_from is None:
            os.kill(os.getpid(), signal.SIGTERM)

class Own(Classification):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5)}
"""


@pytest.mark.slow
def test_a_test_that_was_stopped_goes_on_at_its_rates(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The schedules of the task are in none of its sessions, and its rates grow from those of the beginning."""
    (here / "mine.py").write_text(INTERRUPTED)
    words = ["task._target_=mine.Own", "+callbacks.stops._target_=mine.Stops", "steps=30", "hydra.run.dir=out"]
    assert main(["find", "lr", *QUICK, *words]) == 75
    assert main(["resume", "out"]) == 0
    logged = [row for row in rows(here / "out") if row["range_test/lr"]]
    assert len(logged) == 30
    assert [float(row["lr"]) for row in logged] == pytest.approx([float(row["range_test/lr"]) for row in logged])
    assert main(["eval", "out"]) == 0, "the weights of the step at which it was stopped"
    assert "damaged" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_two_workers_find_the_rate_of_one(here: Path) -> None:
    two = ["topology.devices_per_node=2", "strategy=ddp"]
    for name, more in (("one", []), ("two", two)):
        assert (
            main(["find", "lr", *QUICK, "steps=30", "trainer.precision=64-true", *more, f"hydra.run.dir={name}"]) == 0
        )
    one, two_workers = (json.loads((here / name / "lr_range_test.json").read_text()) for name in ("one", "two"))
    assert one == two_workers


def test_the_steepest_descent_of_a_known_curve() -> None:
    curve = LRCurve(smoothing=0.9)
    rates = np.geomspace(1e-6, 10, 200)
    noise = np.random.default_rng(0).normal(0, 0.05, 200)
    for rate, extra in zip(rates, noise, strict=True):
        decade = np.log10(rate)
        # falls by 2 around 1e-3, rises without bound from 1 on
        curve.add(float(rate), float(3 - 2 / (1 + np.exp(-6 * (decade + 3))) + np.exp(8 * (decade - 0.5)) + extra))
    suggestion = curve.suggestion()
    assert suggestion is not None
    assert abs(np.log10(suggestion) + 3) < 0.35
    assert suggestion < curve.lowest() < 1
    assert curve.has_diverged(3.0, 10)


def test_a_curve_that_falls_nowhere_has_no_suggestion() -> None:
    curve = LRCurve(smoothing=0.5)
    for step in range(50):
        curve.add(10.0 ** (step / 10), 1.0 + 0.1 * step)
    assert curve.suggestion() is None
    assert LRCurve(0.9).suggestion() is None


# batch size


@pytest.mark.parametrize("capacity", [1, 5, 64, 100, 1000, 4097])
@pytest.mark.parametrize("start", [1, 64, 3000])
@pytest.mark.parametrize("unit", [1, 6])
def test_the_search_comes_within_the_tolerance(capacity: int, start: int, unit: int) -> None:
    def probe(size: int) -> Probe:
        assert size % unit == 0
        return Probe(size, size if size <= capacity else 0)

    found = list(probes(probe, start, unit, None, 0.05))
    largest = max((each.size for each in found if each.fits), default=0)
    above = min(each.size for each in found if not each.fits)
    assert largest <= capacity < above
    assert above - largest <= max(unit, 0.05 * largest)
    assert len({each.size for each in found}) == len(found) < 25


def test_the_search_ends_at_the_training_set_and_at_most() -> None:
    def probe(size: int) -> Probe:
        return Probe(size, min(size, 1000))

    assert [each.size for each in probes(probe, 300, 1, None, 0.05)] == [300, 600, 1200]
    assert [each.size for each in probes(probe, 300, 4, 502, 0.05)] == [300, 500]


@pytest.mark.slow
def test_the_largest_batch_by_errors_of_the_allocator(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").write_text(NEEDY)
    words = ["task._target_=mine.Needy", "start=50", "tolerance=0.2", "callbacks.checkpoint.every_n_steps=1"]
    assert main(["find", "batch_size", *QUICK, *words, "hydra.run.dir=out"]) == 0
    told = capfd.readouterr().out
    assert "batch_size=200      does not fit: out of memory in step 1: CUDA out of memory" in told
    assert "the largest that fits: batch_size=150; 175 does not fit" in told
    assert "optimizer.lr_batch_size=64" in told
    assert [path.name for path in (here / "out").iterdir()] == ["batch_size.json"]
    assert {path.name for path in here.iterdir()} <= {"out", "mine.py", "__pycache__"}


NEEDY = """
import torch
from leyden.trainer.components.tasks.classification import Classification

class Needy(Classification):
    def training_step(self, batch, batch_idx):
        if len(batch[0]) > 160:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. Tip.")
        return super().training_step(batch, batch_idx)
"""


@pytest.mark.campaign
def test_the_largest_batch_within_a_limit_of_memory(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    big = ["dataset=synthetic", "dataset.samples=4000", "dataset.image_shape=[3,128,128]"]
    net = ["model=mlp", "model.hidden=[8]"]
    assert (
        main(["find", "batch_size", *big, *net, "start=512", "memory_gb=0.9", "tolerance=0.9", "hydra.run.dir=out"])
        == 0
    )
    told = capfd.readouterr().out
    assert "resident set of at most memory_gb=0.9" in told
    assert "does not fit: a worker takes more than 0.9 GB" in told
    found = json.loads((here / "out/batch_size.json").read_text())
    assert all(probe["peak_gb"] <= 0.9 for probe in found["probes"] if probe["taken"])
    assert not list((here / "out").glob("probe-*"))


def test_a_probe_that_fails_otherwise_ends_the_search(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").write_text(
        NEEDY.replace('torch.OutOfMemoryError("CUDA out of', 'KeyError("no').replace("160", "1")
    )
    assert main(["find", "batch_size", *QUICK, "task._target_=mine.Needy", "hydra.run.dir=out"]) == 1
    assert "not for want of memory\n  KeyError: 'no memory. Tried" in capfd.readouterr().err
    assert not (here / "out").exists()


# mistakes


MISTAKES = {
    "": "finds one of lr and batch_size",
    "rate": "finds one of lr and batch_size",
    "lr low=0": "low = 0\n    must be greater than 0\n    try: low=1e-6",
    "lr high=1e-9": "high = 1e-09\n    must be greater than low, 1e-06\n    try: high=10",
    "lr high=nan": "high = nan\n    must be a number\n    try: high=10.0",
    "lr steps=2.5": "steps = 2.5\n    must be a whole number\n    try: steps=200",
    "lr steps=3": "steps = 3\n    must be at least 20\n    try: steps=200",
    "lr smoothing=1": "smoothing = 1\n    must be at least 0 and less than 1\n    try: smoothing=0.9",
    "lr strategy=asgd topology.devices_per_node=2": "have no common loss of a step",
    "lr optimizer.lrr=3": "SGD takes no argument 'lrr'",
    "lr topology=slurm topology.device.kind=cpu": "topology.launcher = slurm\n    must be local",
    "batch_size start=0": "start = 0\n    must be a whole number of at least 1",
    "batch_size most=x": "most = x\n    must be a number\n    try: most=null",
    "batch_size most=1 trainer.accumulate_grad_batches=2": "must be a whole number of at least 2",
    "batch_size tolerance=1": "tolerance = 1\n    must be at least 0 and less than 1",
    "batch_size memory_gb=-1": "memory_gb = -1\n    must be greater than 0",
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_cost_nothing(words: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["find", *words.split()]) == 2
    assert MISTAKES[words] in capfd.readouterr().err
    assert not list(here.iterdir())


def test_a_monitor_that_is_not_logged_is_named(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "lr", *TINY[:3], "monitor=train/los", "hydra.run.dir=out"]) == 1
    assert "monitor=train/los was not logged; logged so far: " in capfd.readouterr().err
