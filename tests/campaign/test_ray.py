"""The example of Ray in docs/kubernetes.md: a run of two actors, of which one is killed."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from markdown_pages import BLOCKS
from runs import metrics, summary, wait_until, weights

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
SHORT = ["trainer.max_epochs=6", "trainer.enable_progress_bar=false"]


def trained(script: Path, folder: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0"}
    with open(folder.with_suffix(".log"), "w") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(folder), *SHORT, *words], cwd=folder.parent, env=environment, stdout=log,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip


def ended(process: "subprocess.Popen[str]", folder: Path) -> str:
    try:
        code = process.wait(280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    log = folder.with_suffix(".log").read_text()
    assert code == 0, log[-4000:]
    return log


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (text,) = [block.text for block in BLOCKS if block.file == "ray_train.py"]
    assert text.count("\n") < 60
    path = tmp_path / "ray_train.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    words = ["dataset=digits", "model=lenet5", "strategy=ddp", "topology=cpu", "topology.devices_per_node=2", *SHORT]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "leyden", *words, f"hydra.run.dir={folder}"], check=True, env=environment)
    return folder


def assert_equal(folder: Path, alone: Path) -> None:
    ours, theirs = weights(folder), weights(alone)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert metrics(folder)["test/acc"] == metrics(alone)["test/acc"]


def test_actors_are_the_workers_of_one_run(script: Path, tmp_path: Path, alone: Path) -> None:
    folder = tmp_path / "run"
    log = ended(trained(script, folder), folder)
    assert_equal(folder, alone)
    assert f"'test/acc': {metrics(folder)['test/acc']}" in log


def test_a_killed_actor_is_started_again_and_the_run_goes_on(script: Path, tmp_path: Path, alone: Path) -> None:
    folder = tmp_path / "run"
    process = trained(script, folder, "callbacks.checkpoint.every_n_steps=5")
    wait_until(lambda: (folder / "checkpoints" / "last.ckpt").exists(), 120)
    actors = [
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if "TrainWorker" in " ".join(each.cmdline())
    ]
    assert len(actors) >= 2
    actors[-1].kill()
    ended(process, folder)
    assert summary(folder)["resumed_from_step"] > 0
    assert_equal(folder, alone)
