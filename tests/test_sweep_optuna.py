"""Optuna's sweeper optimizes the metric of the best checkpoints, and a failed trial does not end the others."""

from pathlib import Path

import pytest
import yaml
from runs import TINY, metrics, summary

from leyden.trainer.cli.main import main

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")

OPTUNA = ["hydra/sweeper=optuna", "hydra.sweep.dir=mine"]
QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none", "topology=cpu"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_trials_that_fail_and_that_cannot_be(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In a pipeline for each batch; the sampler's seed makes it ask in the order in which the values stand here."""
    asked = ["hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", "optimizer.lr=choice(0.1,1e30,-1,0.01)"]
    sampler = ["hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=44"]
    pipeline = ["hydra/launcher=pipeline", "topology.devices_per_node=2"]
    assert main(["-m", *OPTUNA, *asked, *sampler, *pipeline, *QUICK]) == 1
    output = capfd.readouterr()
    assert "in trial 2 (optimizer.lr=-1" in output.err
    assert output.out.count("│ refused │") == output.out.count("│ failed  │") == 1
    folders = [path.name for path in (here / "mine").iterdir() if path.is_dir()]
    assert sorted(folders) == ["0", "1", "3", "pipeline", "pipeline-3"]
    assert [summary(here / "mine" / name)["status"] for name in "013"] == ["done", "failed", "done"]
    best = max("03", key=lambda name: metrics(here / "mine" / name)["val/acc"])
    found = yaml.safe_load((here / "mine" / "optimization_results.yaml").read_text())
    assert found["best_value"] == metrics(here / "mine" / best)["val/acc"]
    assert found["best_params"]["optimizer.lr"] == {"0": 0.1, "3": 0.01}[best]


@pytest.mark.slow
def test_the_least_is_the_best_where_checkpoints_say_so(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    least = ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"]
    asked = ["hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1", "optimizer.lr=interval(0.001,0.1)"]
    assert main(["-m", *OPTUNA, *asked, *least, *QUICK]) == 0
    found = yaml.safe_load((here / "mine" / "optimization_results.yaml").read_text())
    assert found["best_value"] == min(metrics(here / "mine" / name)["val/loss"] for name in "01")
    capfd.readouterr()
    assert main(["resume", "mine"]) == 0
    output = capfd.readouterr().out
    assert "2 of 2 trials are done" in output
    assert "OptunaSweeper chooses no further trials" in output


@pytest.mark.parametrize(
    ("words", "key", "remedy"),
    [
        ("hydra.sweeper.direction=minimize", "hydra.sweeper.direction = minimize", "leave it out"),
        ("hydra.sweeper.direction=[maximize,minimize]", "hydra.sweeper.direction", "callbacks.checkpoint.mode"),
        ("optimizer.lr=choice(-1,-2)", "optimizer.lr = -", "optimizer.lr"),
        (
            "hydra/launcher=pipeline topology=cpu topology.launcher=node topology.nodes=2",
            "hydra/sweeper = OptunaSweeper", "topology.launcher=local",
        ),
    ],
)  # fmt: skip
def test_nothing_is_made(words: str, key: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *OPTUNA, *QUICK, "optimizer.lr=choice(0.1,0.2)", *words.split()]) == 2
    error = capsys.readouterr().err
    assert key in error
    assert remedy in error
    assert not list(here.iterdir())
