"""Model hopping: each model is as if it had been trained alone, despite kills, signals and failures of others."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from folders import MODULES
from PIL import Image
from runs import PATIENCE_S, TINY, Freeze, alive, children, rows, summary, wait_until, weights

from leyden.datasets.digits import Digits
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.entrypoints.start import start
from leyden.trainer.hopping.progress import HoppingProgress
from leyden.trainer.hopping.trials import HoppingTrial, restore_position
from leyden.trainer.runs import checkpoints

QUICK = [
    "topology=cpu", "dataset.image_size=8", "augment=none", "batch_size=60", "trainer.max_epochs=3",
    "trainer.enable_progress_bar=false", "trainer.precision=64-true",
]  # fmt: skip
UNEQUAL = ["model=mlp", "model.hidden=[16],[64,32],[8]"]
KILLS = int(os.environ.get("LEYDEN_KILLS", "4"))


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; and every process computes with one thread, so that sums come out alike."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield here
    torch.set_num_threads(threads)


def swept(*words: str, workers: int = 2, scheduler: str = "greedy") -> list[str]:
    pipeline = ["hydra/launcher=pipeline", f"hydra.launcher.scheduler={scheduler}", "hydra.sweep.dir=mine"]
    return ["-m", *pipeline, f"topology.devices_per_node={workers}", *QUICK, *words]


def trials(sweep: Path) -> list[Path]:
    return sorted(path for path in sweep.iterdir() if path.name.isdigit())


def assert_as_alone(trial: Path, freeze: Freeze, *more: str, starts: int = 1) -> None:
    """Bit for bit what one worker makes of it over the same partitions in the same order; and logged alike."""
    overrides = yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
    partitions = yaml.safe_load((trial / "config.yaml").read_text())["dataset"]["partitions"]
    order = summary(trial)["partition_orders"]
    assert all(sorted(each) == list(range(partitions)) for each in order)
    alone = freeze(
        f"alone-{trial.name}", *overrides, *more, "topology.devices_per_node=1", f"dataset.partitions={partitions}",
        f"dataset.partition_order={json.dumps(order).replace(' ', '')}",
    )  # fmt: skip
    assert start(alone) == 0
    ours, theirs = weights(trial), weights(alone)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert logged(trial) == logged(alone)
    assert 1 <= len(list(trial.glob("events.out.tfevents.*"))) <= starts


def logged(run_dir: Path) -> list[dict[str, str]]:
    """Everything but times."""
    return [
        {name: value for name, value in row.items() if value and not name.startswith(("time/", "samples_per"))}
        for row in rows(run_dir)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "workers", "partitions", "hops"),
    [
        ("greedy", 2, 3, "memory"),
        pytest.param("systolic", 3, 3, "files", marks=pytest.mark.campaign),
        pytest.param("ring", 4, 4, "memory", marks=pytest.mark.campaign),
    ],
)
def test_every_model_is_as_if_trained_alone(
    scheduler: str, workers: int, partitions: int, hops: str, here: Path, freeze: Freeze,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pipeline = [f"dataset.partitions={partitions}", f"hydra.launcher.hops={hops}", "trainer.max_epochs=2"]
    assert main(swept(*UNEQUAL, *pipeline, workers=workers, scheduler=scheduler)) == 0
    assert f"pipeline: {3 * 2 * partitions} sub-epochs" in capfd.readouterr().out
    with Image.open(here / "mine" / "pipeline" / "schedule.png") as picture:
        assert picture.height > workers * 30
    for trial in trials(here / "mine"):
        assert summary(trial)["status"] == "done"
        assert_as_alone(trial, freeze)


@pytest.mark.slow
def test_what_is_read_and_what_is_moved(here: Path, freeze: Freeze) -> None:
    """No worker reads a sample of another's partition. What hops is weights and momentum, as often as a worker differs
    from the one before."""
    watched = ["dataset._target_=hopping_examples.Watched", f"+dataset.log={here / 'read.txt'}"]
    words = swept(*UNEQUAL, *watched, "dataset.val_fraction=0", workers=3, scheduler="ring")
    assert main([*words, "trainer.precision=32-true", "trainer.max_epochs=2"]) == 0
    read = {tuple(map(int, line.split())) for line in (here / "read.txt").read_text().splitlines()}
    assert len(read) == len({index for _, index in read}) == 1437
    order = SampleOrder(1437, 60, seed=0, partitions=3)
    for worker in range(3):
        assert {index for rank, index in read if rank == worker} == set(order.partition(worker).tolist())

    result = summary(here / "mine" / "pipeline")
    numbers = [sum(tensor.numel() for tensor in weights(trial).values()) for trial in trials(here / "mine")]
    epochs, partitions = 2, 3
    assert result["hops"] == 3 * (epochs * partitions - 1)
    assert result["hop_bytes"]["parameters"] == result["hop_bytes"]["optimizer"]
    moved = result["hop_bytes"]["parameters"] + result["hop_bytes"]["optimizer"]
    assert moved == (epochs * partitions - 1) * sum(8 * number for number in numbers)
    assert result["hop_bytes"]["rest"] < 30_000 * result["hops"]


@pytest.mark.slow
def test_no_worker_opens_a_file_of_anothers_partition(here: Path, freeze: Freeze) -> None:
    """Contiguous partitions are whole shards, of different sizes; and nothing is read ahead beyond one."""
    Preparation(here / "set", {"train": Digits("train", 8)}, format="raw", shard_size=500).run(lambda *_: None)
    words = swept(
        "dataset._target_=hopping_examples.OpensLogged", f"+dataset.root={here / 'set'}",
        f"+dataset.log={here / 'opened.txt'}", "dataset.val_fraction=0", "dataset.partitioning=contiguous",
        "dataset.shuffling=blocks", "dataset.shuffle_block=30", "dataset.shuffle_buffer=4", "model=mlp",
        "model.hidden=[8],[16]",
    )  # fmt: skip
    assert main(words) == 0
    opened = {tuple(line.split()) for line in (here / "opened.txt").read_text().splitlines()}
    assert opened == {("0", "train-000000.raw"), ("1", "train-000001.raw"), ("1", "train-000002.raw")}
    for trial in trials(here / "mine"):
        assert summary(trial)["status"] == "done"
        assert_as_alone(trial, freeze)


@pytest.mark.slow
def test_trials_that_accumulate_gradients_are_as_if_trained_alone(here: Path, freeze: Freeze) -> None:
    """Each in as many parts of its batch as it says; the pipeline's own run has neither batch nor parts."""
    parts = ["model=mlp", "model.hidden=[16]", "trainer.accumulate_grad_batches=3,1"]
    assert main([*swept(*parts), "trainer.max_epochs=2"]) == 0
    for trial in trials(here / "mine"):
        assert_as_alone(trial, freeze, "trainer.max_epochs=2")
    first, second = (weights(trial) for trial in trials(here / "mine"))
    assert any(not torch.equal(first[name], second[name]) for name in second), (
        "the parts make no difference to the bits"
    )
    for trial in trials(here / "mine"):
        (session,) = summary(trial)["sessions"]  # of all sub-epochs
        assert session["steps"] == summary(trial)["steps"]
        assert session["train_seconds"] == summary(trial)["step_time"]["total"]


def sub_epochs_completed(here: Path) -> int:
    schedule = here / "mine" / "pipeline" / "schedule.csv"
    return schedule.read_text().count("\n") if schedule.exists() else 0


def started(here: Path, *words: str) -> subprocess.Popen[str]:
    """A sweep in a process of its own, after some sub-epochs."""
    command = [sys.executable, "-m", "leyden", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    before = sub_epochs_completed(here)
    wait_until(lambda: process.poll() is not None or sub_epochs_completed(here) > before + 6)
    assert process.poll() is None, process.communicate()[0]
    return process


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Below the sweep's process: the pipeline's agent, below it the workers."""
    (agent,) = children(process.pid)
    return sorted(children(agent))


def enough(sweep: Path) -> str:
    """An override by which all trials end, soon after where the first of them is."""
    with open(sweep / "pipeline" / "schedule.csv", newline="") as file:
        return f"trainer.max_epochs={max(int(row['epoch']) for row in csv.DictReader(file)) + 2}"


def steps_of_sub_epochs(sweep: Path) -> dict[str, list[int]]:
    """Steps of each trial at which its sub-epochs ended."""
    steps: dict[str, list[int]] = {}
    with open(sweep / "pipeline" / "schedule.csv", newline="") as file:
        for row in csv.DictReader(file):
            steps.setdefault(row["trial"], []).append(int(row["step"]))
    return steps


LONG = ["trainer.max_epochs=5000", "schedule=constant", "callbacks.checkpoint.every_n_epochs=100000"]
"""Far too long to end by itself. Nothing is saved but for a reason."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "loaders", "kills"),
    [
        ("greedy", 1, 1),
        pytest.param("greedy", 1, KILLS, marks=pytest.mark.campaign),
        pytest.param("ring", 0, KILLS, marks=pytest.mark.campaign),
    ],
)
def test_a_worker_is_killed_and_no_model_is_lost(
    scheduler: str, loaders: int, kills: int, here: Path, freeze: Freeze
) -> None:
    """With loaders, which hold the dead worker's connections a while longer, and without."""
    rng = random.Random(scheduler)
    for turn in range(kills):
        words = [*swept(*UNEQUAL, *LONG, scheduler=scheduler), f"dataset.num_workers={loaders}"]
        words = words if turn == 0 else ["resume", "mine"]
        process = started(here, *words)
        time.sleep(rng.uniform(0, 0.5))
        workers = workers_of(process)
        rank = rng.randrange(2)
        os.kill(workers[rank], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, output
        assert "failed: killed by SIGKILL" in output
        assert not [pid for pid in workers if alive(pid)]
        for name, steps in steps_of_sub_epochs(here / "mine").items():
            saved = [checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(here / "mine" / name)]
            assert max(saved, default=0) >= max(steps[:-1], default=0), "one sub-epoch is lost at most"
    epochs = enough(here / "mine")
    assert main(["resume", "mine", epochs]) == 0
    for trial in trials(here / "mine"):
        assert_as_alone(trial, freeze, epochs, starts=1 + kills)


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_later(here: Path, freeze: Freeze) -> None:
    process = started(here, *swept(*UNEQUAL, *LONG))
    assert main(["resume", "mine/1"]) == 2  # it is led by the pipeline
    assert main(["stop", "mine/1"]) == 2  # and is not alone there
    assert main(["stop", "mine"]) == 0
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, output
    assert "leyden resume mine" in output
    for trial in trials(here / "mine"):
        assert summary(trial)["status"] == "preempted"
        last = steps_of_sub_epochs(here / "mine")[trial.name][-1]
        assert checkpoints.step_of(checkpoints.saved_checkpoints(trial)[0]) >= last
    epochs = enough(here / "mine")
    (here / "mine").rename(here / "moved")
    assert main(["resume", "moved", "topology.devices_per_node=1", epochs]) == 0
    assert summary(here / "moved" / "pipeline")["hops"] == 0
    for trial in trials(here / "moved"):
        assert_as_alone(trial, freeze, epochs, starts=2)
        result = summary(trial)
        assert len(result["sessions"]) == 2
        assert result["totals"]["steps"] == result["steps"]
        assert result["totals"]["samples"] == result["samples"]


@pytest.mark.parametrize(
    ("partitions", "steps", "order", "bound_to"),
    [(1, 5, [], 0), (3, 5, [], 0), (3, 7, [0], None), (3, 9, [0], 1), (3, 21, [], None)],
)
def test_a_run_is_placed_where_its_checkpoint_is(
    partitions: int, steps: int, order: list[int], bound_to: int | None, freeze: Freeze
) -> None:
    alone = freeze("alone", *TINY, "batch_size=60", f"dataset.partitions={partitions}", f"trainer.max_steps={steps}")
    assert start(alone) == 0
    progress = HoppingProgress({0: 9}, list(range(partitions)))
    restore_position(HoppingTrial(0, alone, load(alone)), progress)
    at = progress.models[0]
    assert (at.epoch, at.order, at.bound_to) == (steps // 21, order, bound_to)


@pytest.mark.slow
def test_a_trial_s_choice_of_kernels_is_not_the_next_one_s(here: Path) -> None:
    records = "+callbacks.records._target_=hopping_examples.RecordsPrecision"
    words = ["model=mlp", "model.hidden=[8]", "trainer.matmul_precision=null,medium,null", records]
    assert main(swept(*words, workers=1)) == 0
    found = [(trial / "precision").read_text().split() for trial in trials(here / "mine")]
    initial = torch.get_float32_matmul_precision()
    assert found == [[initial] * 3, ["medium"] * 3, [initial] * 3]


@pytest.mark.slow
def test_trials_that_fail_leave_the_others_alone(here: Path, freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["model=mlp", "model.hidden=[8]", "seed=1,2", "optimizer.lr=0.02,1e30", "trainer.log_every_n_steps=1"]
    own = "+logger.own._target_=logger_examples.NotesStatus"
    assert main(swept(*words, own, "+callbacks.fails._target_=hopping_examples.Fails")) == 1
    good, diverged, raised, _ = trials(here / "mine")
    assert [(trial / "status").read_text() for trial in trials(here / "mine")] == ["success", *["failed"] * 3]
    assert [summary(trial)["status"] for trial in trials(here / "mine")] == ["done", "failed", "failed", "failed"]
    assert "RuntimeError: on purpose" in summary(raised)["error"]
    assert "on_step_end" in (raised / "run.log").read_text()
    assert "the loss is" in summary(diverged)["error"]
    assert_as_alone(good, freeze)
    assert capfd.readouterr().out.count("failed") >= 3


@pytest.mark.slow
def test_the_worse_trials_are_stopped_early(here: Path, freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    halving = ["hydra.launcher.early_stopping=halving", "hydra.launcher.eta=2", "trainer.max_epochs=4"]
    words = ["model=mlp", "model.hidden=[8]", "optimizer.lr=0.1,0.001,0.0001,0.03"]
    assert main(swept(*words, *halving, scheduler="ring")) == 0
    reached = {trial.name: summary(trial)["epochs"] for trial in trials(here / "mine")}
    assert sorted(reached.values()) == [1, 1, 2, 4]
    assert {name for name, epochs in reached.items() if epochs == 1} == {"1", "2"}
    output = capfd.readouterr().out
    assert output.count("stopped early: halving") == 6  # when it happens, and in the table
    for name, epochs in reached.items():
        trial = here / "mine" / name
        assert summary(trial)["status"] == "done"
        assert "test/acc" in summary(trial)["metrics"]
        if epochs < 4:
            assert f"after {epochs} epoch" in summary(trial)["stop_reason"]
    overrides = yaml.safe_load((here / "mine" / "1" / ".hydra" / "overrides.yaml").read_text())
    order = summary(here / "mine" / "1")["partition_orders"][0]
    alone = freeze(
        "alone", *overrides, "topology.devices_per_node=1", "dataset.partitions=2",
        f"dataset.partition_order=[{order[0]},{order[1]}]", "callbacks.checkpoint.keep_last=9",
    )  # fmt: skip
    assert start(alone) == 0
    theirs = checkpoint_io.read(alone / "checkpoints" / "step=00000020.ckpt")["model"]
    assert all(torch.equal(value, theirs[name]) for name, value in weights(here / "mine" / "1").items())


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("words", "key", "remedy"),
    [
        ("hydra.launcher.scheduler=fifo", "hydra.launcher.scheduler", "greedy"),
        ("strategy=ddp", "strategy = ddp", "strategy=single"),
        ("topology.devices_per_node=2,3", "topology", "one value of topology.devices_per_node"),
        ("dataset.val_fraction=0.2,0.1", "dataset", "one value of dataset.val_fraction"),
        ("dataset.partitions=2 topology.devices_per_node=3", "dataset.partitions = 2", "dataset.partitions=3"),
        ("dataset.partition_order=[0,1]", "dataset.partition_order", "dataset.partition_order=null"),
        ("trainer.fast_dev_run=true", "trainer.fast_dev_run", "trainer.max_epochs=1"),
        ("hydra.launcher.looks=3", "hydra.launcher.looks", "scheduler"),
    ],
)
def test_what_a_pipeline_cannot_do(
    words: str, key: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(swept("model=mlp", "seed=1,2", *words.split())) == 2
    error = capsys.readouterr().err
    assert key in error
    assert remedy in error
    assert not list(here.iterdir())


def test_one_run_is_no_pipeline(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra/launcher=pipeline", "model=mlp"]) == 2
    error = capsys.readouterr().err
    assert "hydra/launcher = pipeline" in error
    assert "leyden -m hydra/launcher=pipeline" in error
    assert not list(here.iterdir())
