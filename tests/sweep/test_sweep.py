"""Sweeps: one folder for each trial, nothing made where one trial is wrong, no failure ends the others."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from folders import MODULES
from runs import HERE, PATIENCE_S, TINY, alive, children, wait_until, weights
from sweep_examples import FewDescriptors

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start

QUICK = [*TINY[2:], "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none"]


@pytest.fixture
def endless(here: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep whose first trial trains, and has a checkpoint."""
    words = ["-m", "model=mlp", *QUICK, "trainer.max_epochs=100000", "seed=1,2", "hydra.sweep.dir=mine"]
    command = [sys.executable, "-m", "leyden", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)
    try:
        wait_until(lambda: bool(list(here.glob("mine/0/checkpoints/*.ckpt"))))
        yield process
    finally:
        process.kill()
        process.wait()


def run_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("config.yaml") if path.parent.name != ".hydra")


@pytest.mark.slow
def test_four_trials_make_exactly_four_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.hidden=[8],[16]", "optimizer.lr=0.1,0.01", "model=mlp", *QUICK]
    assert main(["-m", *words]) == 0
    (sweep,) = here.glob("outputs/*/*-sweep")
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "2", "3", "multirun.yaml"]
    assert run_folders(here) == [sweep / name for name in "0123"]
    frozen = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in run_folders(here)]
    assert [(f["model"]["hidden"], f["optimizer"]["lr"]) for f in frozen] == [
        ([8], 0.1), ([8], 0.01), ([16], 0.1), ([16], 0.01)
    ]  # fmt: skip
    for folder in run_folders(here):
        assert json.loads((folder / "summary.json").read_text())["status"] == "done"
        assert {path.name for path in (folder / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
        assert not list(folder.glob("*leyden*.log"))
    table = capsys.readouterr().out
    assert "val/acc" in table
    assert table.count("done") == 4
    assert yaml.safe_load((sweep / "multirun.yaml").read_text())["hydra"]["sweep"]["dir"] == str(sweep)


@pytest.mark.parametrize(
    "wrong",
    ["optimizer.lr=0.1,-1", "model=mlp,nowhere", "seed=1,x", "model.hidden=[8],[a]", "batch_size=64,63 +x=1"],
)
def test_one_wrong_trial_and_nothing_is_made(wrong: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "model=mlp", *QUICK, *wrong.split()]) == 2
    assert "trial" in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.slow
def test_every_batch_is_validated_before_the_first_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "hydra.sweeper.max_batch_size=1", "model=mlp", *QUICK, "seed=1,2,x"]) == 2
    assert "trial 2" in capsys.readouterr().err
    assert not list(here.iterdir())


FAILS_AT_SEED_ONE = """
from leyden.models.mlp import MLP

class Net(MLP):
    def forward(self, images):
        if self.fails and images.sum().item() < float("inf"):  # what the check before the start cannot know
            raise RuntimeError("on purpose")
        return super().forward(images)

    def __init__(self, classes, image_shape, fails: bool):
        super().__init__(classes, image_shape, [8])
        self.fails = fails
"""


@pytest.mark.slow
def test_failed_trial_does_not_stop_the_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "nets.py").write_text(FAILS_AT_SEED_ONE)
    words = ["model._target_=nets.Net", "model.fails=true,false", "seed=3", "hydra.sweep.dir=mine", *QUICK[1:]]
    assert main(["-m", *words]) == 1
    table = capsys.readouterr().out
    assert table.count("failed") >= 1
    status = [json.loads((here / f"mine/{n}/summary.json").read_text())["status"] for n in (0, 1)]
    assert status == ["failed", "done"]

    assert main(["-m", *words]) == 2
    assert "leyden resume mine/0" in capsys.readouterr().err


@pytest.mark.slow
def test_trial_that_cannot_be_built_does_not_stop_the_rest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=mlp", "schedule.warmup_steps=100000,1", "hydra.sweep.dir=mine", *QUICK]
    assert main(["-m", *words]) == 1
    assert "refused" in capsys.readouterr().out
    assert json.loads((here / "mine/1/summary.json").read_text())["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.campaign), signal.SIGINT])
def test_signal_ends_the_sweep_and_its_trial(
    number: signal.Signals, endless: subprocess.Popen[bytes], here: Path
) -> None:
    (trial,) = children(endless.pid)
    os.kill(endless.pid, number)
    assert endless.wait(PATIENCE_S) == (75 if number is signal.SIGTERM else 130)
    assert not alive(trial)
    assert (here / "mine/0/checkpoints/last.ckpt").exists()
    assert [path.name for path in (here / "mine/1").iterdir() if path.is_file()] == ["config.yaml"]
    assert not (here / "mine/agent.json").exists()


@pytest.mark.slow
def test_killed_sweep_leaves_no_trial_behind(endless: subprocess.Popen[bytes]) -> None:
    (trial,) = children(endless.pid)
    endless.kill()
    endless.wait()
    wait_until(lambda: not alive(trial))


@pytest.mark.slow
def test_resumed_sweep_equals_trials_trained_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # an epoch reads 1150 samples: the second trial is stuck in its 11th step
    stuck = ["dataset._target_=hang_examples.Stuck", "dataset.rank=0", "dataset.after=2000,700,3000",
             f"dataset.once={here}/stuck", f"+{HERE}"]  # fmt: skip
    words = ["-m", "model=mlp", *QUICK, *stuck, "callbacks.checkpoint.every_n_steps=5", "hydra.sweep.dir=mine"]
    process = subprocess.Popen([sys.executable, "-m", "leyden", *words], stdout=subprocess.DEVNULL)
    try:
        wait_until((here / "stuck").exists)
        (trial,) = children(process.pid)
    finally:
        process.kill()
        process.wait()
    os.kill(trial, signal.SIGKILL)
    wait_until(lambda: not alive(trial))
    first = (here / "mine/0/summary.json").read_bytes()

    assert main(["resume", "mine"]) == 0
    said = capsys.readouterr().out
    assert "1 of 3 trials are done, 2 are resumed" in said
    assert said.count("done") >= 4
    assert (here / "mine/0/summary.json").read_bytes() == first
    resumed = [json.loads((here / f"mine/{n}/summary.json").read_text())["resumed_from_step"] for n in (0, 1, 2)]
    assert resumed == [None, 10, None]
    for number in "012":
        alone = here / f"alone-{number}"
        alone.mkdir()
        shutil.copy(here / f"mine/{number}/config.yaml", alone)
        assert start(alone) == 0
        one, other = weights(here / "mine" / number), weights(alone)
        assert one.keys() == other.keys()
        assert all(bool((one[name] == other[name]).all()) for name in one)
    assert main(["resume", "mine"]) == 0
    assert "3 of 3 trials are done, 0 are resumed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", pytest.param("pipeline", marks=pytest.mark.campaign)])
def test_a_sweep_without_file_descriptors_is_one_sentence(here: Path, launcher: str) -> None:
    words = ["model=mlp", *QUICK, "seed=1,2", "hydra.sweep.dir=mine", f"hydra/launcher={launcher}", "topology=cpu"]
    few = f"+hydra.callbacks.few._target_={FewDescriptors.__module__}.{FewDescriptors.__name__}"
    environment = {**os.environ, "PYTHONPATH": str(MODULES)}
    command = [sys.executable, "-m", "leyden", "-m", *words, few]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "too many open files: a process may have" in done.stderr
    assert "continue with: leyden resume mine" in done.stderr
    assert main(["resume", "mine"]) == 0
