"""dataset.cache: images that are read once, and stay in memory or on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from reading_examples import Waits
from runs import POINTS, Freeze, summary, task

from leyden.datasets.augment import CropFlip
from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.core.batch import BadSamples
from leyden.trainer.data import cached_split
from leyden.trainer.data.batch_reader import WholeBatches
from leyden.trainer.data.batch_sources import BatchSources
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.splits import Splits
from leyden.trainer.entrypoints.start import start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 training and 9 validation images of two classes."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 30), ("val", 9)):
        for number in range(count):
            place = tmp_path / "images" / split / ("dark", "light")[number % 2] / f"{number:02}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 255, (20 + number, 30, 3), dtype=np.uint8)).save(place)
    return tmp_path / "images"


def options(folder: Path, *more: str) -> list[str]:
    return ["dataset=image_folder", f"dataset.root={folder}", "dataset.image_size=16", "dataset.crop=12",
            "dataset.resize=14", "batch_size=8", "model=mlp", "augment=crop_flip", *more]  # fmt: skip


def batches(data: ImageData, epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = [data.on_after_batch_transfer(part.batch, 0) for part in data.train_parts(epoch)]
    return [*found, *(batch for batch, _ in data.evaluation_batches("val"))]


def assert_same(one: ImageData, other: ImageData) -> None:
    for epoch in (0, 1):
        for (images, labels), (expected, wanted) in zip(batches(one, epoch), batches(other, epoch), strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, wanted)


def bad(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes((folder / name).read_bytes()[:100])


@pytest.mark.parametrize("kind", ["memory", "device"])
@pytest.mark.parametrize("augment", ["crop_flip", "airbench"])
def test_cached_images_are_those_that_are_read(
    freeze: Freeze, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, augment: str
) -> None:
    plain = ImageData(load(freeze("plain", *options(folder, f"augment={augment}"))), (0, 1))
    cached = ImageData(load(freeze("cached", *options(folder, f"augment={augment}", f"dataset.cache={kind}"))), (0, 1))
    expected = [batches(plain, epoch) for epoch in (0, 1)]
    monkeypatch.setattr(ImageFolder, "__getitem__", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(ImageFolder, "evaluation_sample", lambda *_: pytest.fail("read again"))
    for epoch in (0, 1):
        for found, wanted in zip(batches(cached, epoch), expected[epoch], strict=True):
            assert torch.equal(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])
    assert BatchSources(plain._sources._splits, None)(("train", 0)).__class__ is not WholeBatches
    assert BatchSources(cached._sources._splits, None)(("train", 0)).__class__ is WholeBatches


def test_bad_images_count_as_without_a_cache(freeze: Freeze, folder: Path) -> None:
    bad(folder, "train/dark/06.jpg", "val/light/03.jpg")
    plain = ImageData(load(freeze("plain", *options(folder, "dataset.max_bad_samples=2"))), (0, 1))
    more = options(folder, "dataset.max_bad_samples=2", "dataset.cache=memory")
    cached = ImageData(load(freeze("cached", *more)), (0, 1))
    assert_same(cached, plain)
    assert list(cached.bad_samples) == list(plain.bad_samples)
    assert len(cached.bad_samples) == 2
    refused = ImageData(load(freeze("refused", *options(folder, "dataset.cache=memory"))), (0, 1))
    with pytest.raises(BadSamples, match=r"06\.jpg"):
        list(refused.train_parts(0))


def test_a_pipelines_models_share_one_cache(freeze: Freeze, folder: Path) -> None:
    config = load(freeze("run", *options(folder, "dataset.cache=memory")))
    splits = Splits.of(config.dataset)
    one, other = ImageData(config, (0, 1), splits=splits), ImageData(config, (0, 1), splits=splits)
    assert one.train_set is other.train_set


def test_a_run_with_a_cache_ends_where_one_without_does(freeze: Freeze, folder: Path) -> None:
    short = ["trainer.max_epochs=1", "logger=none", "callbacks=none", "dataset.crop=null", "dataset.resize=16"]
    losses: list[float] = []
    for kind in ("none", "memory", "device"):
        run_dir = freeze(kind, *options(folder, *short, f"dataset.cache={kind}"))
        assert start(run_dir) == 0
        losses.append(summary(run_dir)["metrics"]["val/loss"])
    assert losses == [losses[0]] * 3


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["augment=imagenet"], "augment chooses crops of the originals"),
        (["dataset.cache=memory"], "30 images of 3 x 16 x 16, and 1.6e-05 GB may be taken: dataset.cache=none"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    freeze: Freeze, folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], text: str
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 20_000}))
    config = load(freeze("run", *options(folder, "dataset.cache=memory", *more)))
    with pytest.raises((ValueError, CannotStart), match=text):
        ImageData(config, (0, 1))


def test_images_of_floats_are_refused() -> None:
    dataset: Any = Waits("train")
    with pytest.raises(ValueError, match=r"holds bytes, and the images are torch\.float32"):
        cached_split.with_cache(Splits(dataset, dataset, None, None), "memory", None, None, 1)


def test_an_error_while_a_cache_is_filled_is_raised() -> None:
    class Bytes(Waits):
        thread_safe = True

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            image, label = super().__getitem__(index)
            return image.to(torch.uint8), label

    dataset: Any = Bytes("train", samples=100, fails=70)
    with pytest.raises(RuntimeError, match="sample 70"):
        cached_split.with_cache(Splits(dataset, dataset, None, None), "memory", None, None, 1)


def test_a_cache_for_loaders_that_read_by_themselves_is_refused(
    freeze: Freeze, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"is for Leyden's datasets, and lightning_examples\.Points reads by its own"):
        start(freeze("run", *POINTS, task("Plain"), "dataset.cache=memory"))


def test_processes_cannot_read_what_is_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["model=mlp", "dataset.cache=device", "dataset.num_workers=2"]) == 2
    error = capsys.readouterr().err
    assert "must be 0 with dataset.cache=device" in error
    assert "try: dataset.num_workers=0" in error
    assert main(["model=mlp", "dataset.cache=gpu"]) == 2
    assert "dataset.cache" in capsys.readouterr().err
    assert main(["model=mlp", "dataset.threads=-1"]) == 2
    assert "dataset.threads" in capsys.readouterr().err


@pytest.mark.parametrize("padding", [0, 3, 20])
def test_a_device_crops_and_flips_as_the_host(padding: int) -> None:
    augment = CropFlip(padding)
    images = torch.randint(1, 256, (50, 3, 9, 14), dtype=torch.uint8)
    keys = [(index * 0x9E3779B97F4A7C15) >> 1 & (2**63 - 1) for index in range(50)]
    drawn = torch.from_numpy(augment._drawn_each(keys))
    assert drawn.tolist() == [[*map(int, augment._drawn(key))] for key in keys]
    found = augment._on_device(images, drawn)
    assert found.dtype is torch.uint8
    assert torch.equal(found, augment.augment_images(images.clone(), keys))
