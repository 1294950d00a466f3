"""Unreadable images: named, counted, skipped as far as the config allows, and nothing lost where it does not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from pool import Pool
from runs import Freeze, Processes, metrics, summary, weights
from torch import Tensor

from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

IMAGES = 12
"""In each class of the training folder; half as many in each class of the validation folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """root/{train,val}/{dark,light}/NN.jpg"""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", IMAGES), ("val", IMAGES // 2)):
        for label, brightness in (("dark", 40), ("light", 160)):
            place = tmp_path / "images" / split / label
            place.mkdir(parents=True)
            for number in range(count):
                noise = torch.randint(0, 60, (12, 12, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray((noise + brightness).numpy()).save(place / f"{number:02}.jpg")
    return tmp_path / "images"


def damage(path: Path) -> Path:
    """Zeros in place of a JPEG's second half. Returns the whole one's new place: of the same size, the same content."""
    kept = path.with_suffix(".kept")
    shutil.copy(path, kept)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    return kept


def options(folder: Path, *more: str) -> list[str]:
    return ["dataset=image_folder", f"dataset.root={folder}", "dataset.image_size=8", "model=mlp", "model.hidden=[8]",
            "model.dropout=0.3", "batch_size=4", "trainer.max_epochs=3", "trainer.log_every_n_steps=1",
            "callbacks.checkpoint.keep_last=100", *more]  # fmt: skip


def index_of(run_dir: Path, name: str) -> int:
    """Number of a training sample."""
    data = ImageData(load(run_dir), (0, 1))
    return next(i for i in range(len(data.train_set)) if data.train_set.name(i).endswith(name))  # pyright: ignore


def step_of_sample(run_dir: Path, name: str) -> int:
    """Steps before the one of the first epoch that reads a sample."""
    batches = ImageData(load(run_dir), (0, 1)).order.batches(0)
    return next(step for step, batch in enumerate(batches) if index_of(run_dir, name) in batch.tolist())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_truncated_image_stops_the_run_by_name_and_nothing_is_lost(
    freeze: Freeze, folder: Path, capfd: pytest.CaptureFixture[str], num_workers: int
) -> None:
    more = options(folder, f"dataset.num_workers={num_workers}")
    whole, broken = freeze("whole", *more), freeze("broken", *more)
    assert start(whole) == 0
    order = ImageData(load(broken), (0, 1)).order.batches(0)
    data = ImageData(load(broken), (0, 1))
    bad = Path(data.train_set.name(int(order[3][1])))  # pyright: ignore[reportAttributeAccessIssue]
    kept = damage(bad)
    os.truncate(bad, bad.stat().st_size // 2)
    assert start(broken) == 1
    error = capfd.readouterr().err
    assert str(bad) in error
    assert "dataset.max_bad_samples=0" in error
    assert "leyden resume" in error
    assert [checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(broken)] == [3]
    assert summary(broken)["status"] == "failed"
    assert str(bad) in summary(broken)["error"]
    kept.rename(bad)
    assert main(["resume", str(broken)]) == 2
    assert "train: sizes of files are others" in " ".join(capfd.readouterr().err.split())
    assert main(["resume", str(broken), "dataset.changed=accept"]) == 0
    assert summary(broken)["resumed_from_step"] == 3
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(broken)[name]), name
    assert metrics(broken)["train/acc"] == metrics(whole)["train/acc"]


def test_in_the_first_step_there_is_nothing_to_save(freeze: Freeze, folder: Path) -> None:
    run_dir = freeze("run", *options(folder))
    data = ImageData(load(run_dir), (0, 1))
    damage(Path(data.train_set.name(int(data.order.batches(0)[0][0]))))  # pyright: ignore[reportAttributeAccessIssue]
    assert start(run_dir) == 1
    assert not checkpoints.saved_checkpoints(run_dir)


def test_half_a_step_is_not_saved(freeze: Freeze, folder: Path) -> None:
    more = options(folder, "trainer.accumulate_grad_batches=2", "callbacks.checkpoint.every_n_steps=2")
    whole, broken = freeze("whole", *more), freeze("broken", *more)
    start(whole)
    data = ImageData(load(broken), (0, 1))
    bad = Path(data.train_set.name(int(data.order.batches(0)[3][3])))  # pyright: ignore[reportAttributeAccessIssue]
    kept = damage(bad)
    assert start(broken) == 1
    assert [checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(broken)] == [2]
    kept.rename(bad)
    assert start(broken, "resume") == 0
    assert metrics(broken)["train/acc"] == metrics(whole)["train/acc"]
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())


def test_in_validation_the_epoch_is_not_lost(freeze: Freeze, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, broken = freeze("whole", *options(folder)), freeze("broken", *options(folder))
    start(whole)
    bad = folder / "val" / "dark" / "02.jpg"
    kept = damage(bad)
    assert start(broken) == 1
    assert str(bad) in capfd.readouterr().err
    assert [checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(broken)] == [6]
    kept.rename(bad)
    assert start(broken, "resume") == 0
    for name in ("train/acc", "val/acc", "val/loss"):
        assert metrics(broken)[name] == metrics(whole)[name]
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_unreadable_samples_are_skipped_named_and_counted_once(freeze: Freeze, folder: Path, num_workers: int) -> None:
    bad = [folder / "train" / "dark" / "03.jpg", folder / "train" / "light" / "07.jpg", folder / "val/light/01.jpg"]
    damage(bad[0])
    bad[1].write_text("no image")
    bad[2].write_bytes(b"")
    run_dir = freeze("run", *options(folder, "dataset.max_bad_samples=5", f"dataset.num_workers={num_workers}"))
    assert start(run_dir) == 0
    told, log = summary(run_dir)["bad_samples"], (run_dir / "run.log").read_text()
    assert len(told) == 3, "three epochs read each three times"
    for path in bad:
        assert len([problem for problem in told if str(path) in problem]) == 1
        assert log.count(str(path)) == 1
    assert summary(run_dir)["samples"] == 3 * 2 * IMAGES


def test_one_more_than_allowed_stops_the_run(freeze: Freeze, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        damage(folder / "train" / "dark" / f"{number:02}.jpg")
    assert start(freeze("run", *options(folder, "dataset.max_bad_samples=2"))) == 1
    printed = capfd.readouterr().err
    assert "(3 so far; dataset.max_bad_samples=2 are skipped)" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("whole_batch", [False, True])
def test_evaluation_leaves_the_unreadable_out(
    freeze: Freeze, folder: Path, num_workers: int, whole_batch: bool
) -> None:
    files = sorted((folder / "val").rglob("*.jpg"))
    unreadable = files[4:8] if whole_batch else files[5:6]
    for path in unreadable:
        damage(path)
    run_dir = freeze("run", *options(folder, "dataset.max_bad_samples=5", f"dataset.num_workers={num_workers}"))
    data = ImageData(load(run_dir), (0, 1))
    batches = list(data.evaluation_batches("val"))
    assert sum(samples for _, samples in batches) == len(files) - len(unreadable)
    assert len(data.bad_samples) == len(unreadable)
    reference = freeze("reference", *options(folder))
    for path in unreadable:
        path.unlink()
    without = list(ImageData(load(reference), (0, 1)).evaluation_batches("val"))
    for column in (0, 1):
        found = torch.cat([batch[column] for batch, _ in batches])
        assert torch.equal(found, torch.cat([batch[column] for batch, _ in without]))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_limited_evaluation_takes_the_same_samples_on_any_number_of_workers(
    freeze: Freeze, folder: Path, workers: int
) -> None:
    files = sorted((folder / "val").rglob("*.jpg"))
    for path in files[:3]:  # more than one worker has none of the first batch
        damage(path)
    config = load(freeze("run", *options(folder, "dataset.max_bad_samples=3")))

    def images(worker: int, workers: int, most: int | None) -> list[Tensor]:
        batches = ImageData(config, (worker, workers)).evaluation_batches("val", most)
        return [image for (images, _), _ in batches for image in images]

    found = [image.sum().item() for worker in range(workers) for image in images(worker, workers, 2)]
    assert sorted(found) == sorted(image.sum().item() for image in images(0, 1, None)[: 2 * 4 - 3])


def test_a_batch_without_a_readable_sample_counts_towards_the_limit(freeze: Freeze, folder: Path) -> None:
    short = [*options(folder), "trainer.max_epochs=1"]
    files = sorted((folder / "val").rglob("*.jpg"))
    for path in files[:4]:
        damage(path)
    damaged = freeze("damaged", *short, "dataset.max_bad_samples=4", "trainer.limit_val_batches=2")
    assert start(damaged) == 0
    for path in files[:4]:
        path.unlink()
    without = freeze("without", *short, "trainer.limit_val_batches=1")
    assert start(without) == 0
    assert metrics(damaged)["val/loss"] == metrics(without)["val/loss"]


def test_training_replaces_it_by_the_next_readable_one(freeze: Freeze, folder: Path) -> None:
    run_dir = freeze("run", *options(folder, "dataset.max_bad_samples=5", "augment=none"))
    index = index_of(run_dir, "train/dark/03.jpg")
    expected = ImageData(load(run_dir), (0, 1)).train_set[index + 1]
    damage(folder / "train" / "dark" / "03.jpg")
    data = ImageData(load(run_dir), (0, 1))
    step = step_of_sample(run_dir, "train/dark/03.jpg")
    place = data.order.batches(0)[step].tolist().index(index)
    part = list(data.train_parts(0))[step]
    assert torch.equal(part.batch[0][place], expected[0])
    assert part.samples == 4


@pytest.mark.slow
def test_every_workers_bad_samples_are_counted(
    freeze: Freeze, folder: Path, pools: Callable[[int], Pool], processes: Processes
) -> None:
    numbers = (1, 4, 7, 10)  # none next to another, which would be read in its place
    for number in numbers:
        damage(folder / "train" / "dark" / f"{number:02}.jpg")
    two = [*options(folder), "strategy=ddp", "topology.devices_per_node=2", "trainer.max_epochs=1"]
    run_dir = freeze("run", *two, "dataset.max_bad_samples=4")
    pools(2).run(run_dir)
    assert len(summary(run_dir)["bad_samples"]) == 4
    assert all((run_dir / "run.log").read_text().count(f"dark/{number:02}.jpg") == 1 for number in numbers)
    stopped = freeze("stopped", *two, "dataset.max_bad_samples=3")
    code, output = processes.run(stopped)
    assert code == 1, output
    assert "(4 so far; dataset.max_bad_samples=3 are skipped)" in output
