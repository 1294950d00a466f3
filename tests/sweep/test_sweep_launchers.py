"""Launchers of other packages: joblib and submitit run the trials of a sweep. Skips where they are not installed."""

from pathlib import Path

import pytest
from runs import TINY, metrics, summary

from leyden.trainer.cli.main import main

QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none", "hydra.sweep.dir=mine"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_trials_are_those_of_the_basic_launcher(launcher: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    assert main(["-m", f"hydra/launcher={launcher}", *QUICK, "seed=1,2"]) == 0
    assert main(["-m", *QUICK[:-1], "hydra.sweep.dir=basic", "seed=1,2"]) == 0
    for number in "01":
        assert summary(here / "mine" / number)["status"] == "done"
        # joblib's processes have fewer threads each, so sums round otherwise
        basic = metrics(here / "basic" / number)["val/loss"]
        assert metrics(here / "mine" / number)["val/loss"] == pytest.approx(basic, rel=1e-6)
    assert "sweep: mine" in capfd.readouterr().out


def test_a_job_that_submits_a_job_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["topology=slurm", "topology.device.kind=cpu", "strategy=ddp"]
    assert main(["-m", "hydra/launcher=submitit_slurm", *QUICK, *words, "seed=1,2"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "hydra/launcher = submitit_slurm submits a job for each trial" in error
    assert "try: hydra/launcher=basic\n    try: topology=local" in error
    assert not (here / "mine").exists()
