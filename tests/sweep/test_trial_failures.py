"""Trials of a sweep that fail: what the sweep's log has of it, and when it ends the sweep."""

from pathlib import Path

import pytest
from runs import TINY, summary

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import failure_report
from leyden.trainer.sweep import resume, trial_process

NET = """
from leyden.models.mlp import MLP

class Net(MLP):
    def forward(self, images):
        if self.fails and images.sum().item() < float("inf"):  # what the check before the start cannot know
            raise RuntimeError("on purpose" + self.fails)
        return super().forward(images)

    def __init__(self, classes, image_shape, fails: str):
        super().__init__(classes, image_shape, [8])
        self.fails = fails
"""
QUICK = ["model._target_=failing_nets.Net", *TINY[2:], "trainer.max_epochs=1", "logger=none", "hydra.sweep.dir=mine"]
FAIL_FAST = "hydra.sweeper.fail_fast=true"
TWICE = "ended with the same exception, RuntimeError: on purpose"


@pytest.fixture(autouse=True)
def trials_in_this_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a trial's own process sets."""
    (here / "failing_nets.py").write_text(NET)
    monkeypatch.setattr(failure_report, "_one_line", True)
    for module in (trial_process, resume):
        monkeypatch.setattr(module, "run_process", start)


def status(trial: int) -> str:
    return summary(Path("mine") / str(trial)).get("status", "")


def test_a_failed_trial_is_one_line_of_the_sweeps_log(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, "model.fails=' ',''"]) == 1
    told, kept = capfd.readouterr().err.splitlines(), Path("mine/0/run.log").read_text()
    assert [line for line in told if "on purpose" in line or "File" in line] == [
        "failed: RuntimeError: on purpose  (mine/0/run.log)"
    ]
    assert 'failing_nets.py", line' in kept
    assert "trainer/engine/loop.py" in kept
    assert kept.endswith("ERROR RuntimeError: on purpose \nno checkpoint had been written\n")
    assert [status(trial) for trial in (0, 1)] == ["failed", "done"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("extra", [[], [FAIL_FAST]])
def test_the_first_failed_trial_ends_the_sweep_if_asked(extra: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, "model.fails='',' a',' a',' b'", *extra]) == 1
    out = capfd.readouterr().out
    begun = [trial for trial in range(4) if Path(f"mine/{trial}/summary.json").exists()]
    if extra:
        assert begun == [0, 1]
        assert "trial 1 has failed and ends the sweep (hydra.sweeper.fail_fast=true)" in out
        assert "stopped; continue with: leyden resume mine" in out
        assert main(["resume", "mine"]) == 1
        out = capfd.readouterr().out
    assert [status(trial) for trial in range(4)] == ["done", "failed", "failed", "failed"]
    assert out.count(f"trials 1 and 2 {TWICE} a; {FAIL_FAST} ends a sweep at its first failed trial") == 1
    assert out.count(TWICE) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([FAIL_FAST, "hydra/launcher=pipeline"], "all of a batch have been started"),
        ([FAIL_FAST, "topology=slurm", "topology.device.kind=cpu"], "all of a batch have been started"),
        (["hydra.sweeper.fail_fast=1"], "must be true or false"),
    ],
)
def test_what_cannot_fail_fast_is_refused(words: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, "model.fails='',' a'", *words]) == 2
    told = capfd.readouterr().err
    assert "hydra.sweeper.fail_fast" in told
    assert text in told
    assert not Path("mine").exists()


def test_optunas_sweeper_has_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra/sweeper/sampler=random", FAIL_FAST]
    assert main(["-m", *QUICK, "model.fails=' a'", "seed=choice(1,2,3)", *words]) == 1
    assert "trial 0 has failed and ends the sweep" in capfd.readouterr().out
    assert not Path("mine/1").exists()
