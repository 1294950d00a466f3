"""`leyden predict`: the predictions are those of the run's own evaluation, for files of every kind."""

import csv
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pool import Pool
from runs import TINY, Freeze, metrics

from leyden.datasets.digits import Digits
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.photographs import Photographs
from leyden.trainer.api.run import Run
from leyden.trainer.cli.main import main
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.runs import checkpoints

QUIET = [*TINY, "trainer.enable_progress_bar=false"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test digits as PNG files, the digit in each name."""
    folder = tmp_path_factory.mktemp("photos")
    digits = Digits("test", image_size=8)
    for index in range(len(digits)):
        image, label = digits[index]
        Image.fromarray(image[0].numpy()).save(folder / f"{index:03d}_{label}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "RUN"
    assert main([*QUIET, "callbacks=[default,ema]", "callbacks.checkpoint.keep_last=1", f"hydra.run.dir={folder}"]) == 0
    return folder


def accuracy(rows: list[dict[str, Any]]) -> float:
    return sum(row["file"].partition("_")[2] == f"{row['name_1']}.png" for row in rows) / len(rows)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_files_get_the_classes_of_the_runs_own_test(
    trained: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, generator = files_of(trained), torch.get_rng_state()
    assert main(["predict", str(trained), str(photos)]) == 0
    assert "360 photographs" in capsys.readouterr().out
    assert files_of(trained) == before, "a run folder is read alone"
    assert torch.equal(torch.get_rng_state(), generator)
    with open("predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == sorted(path.name for path in photos.iterdir())
    # of the average (EMA), which is what the test has evaluated
    assert accuracy(rows) == pytest.approx(metrics(trained)["test/acc"], abs=1e-12)
    assert all(float(row["probability_1"]) >= float(row["probability_2"]) > 0 for row in rows)
    with Image.open("predictions.png") as sheet:
        assert sheet.size[0] > 6 * 144
    assert sorted(path.name for path in here.iterdir()) == ["predictions.csv", "predictions.png"]


def test_the_average_is_used_and_not_the_weights(trained: Path) -> None:
    predictor = Run(trained).predictor
    content = checkpoint_io.read(trained / "checkpoints" / "last.ckpt")
    average = content["callbacks"]["ema"]["average"]
    for name, value in predictor.task.named_parameters():
        assert torch.equal(value.detach(), average[name])
        assert not torch.equal(value.detach(), content["model"][name])


def test_json_and_a_zip_and_one_file(trained: Path, photos: Path, here: Path) -> None:
    first = sorted(photos.iterdir())[:3]
    with zipfile.ZipFile("some.zip", "w") as archive:
        for file in first:
            archive.write(file, f"holiday/{file.name}")
    assert main(["predict", str(trained), "some.zip", "--out", "all.json", "top=99", "sheet=0", "batch_size=2"]) == 0
    found = json.loads(Path("all.json").read_text())
    assert [Path(row["file"]).name for row in found] == [file.name for file in first]
    assert all(sum(each["probability"] for each in row["predictions"]) == pytest.approx(1, abs=1e-5) for row in found)
    assert sorted(each["class"] for each in found[0]["predictions"]) == list(range(10))
    assert not Path("all.png").exists()
    alone = Run(trained).predict(first[0], top=1)
    assert (alone[0].file, alone[0].ranked[0].number) == (first[0].name, found[0]["predictions"][0]["class"])
    assert alone[0].probability == pytest.approx(found[0]["predictions"][0]["probability"], abs=1e-6)


def test_parquet(trained: Path, photos: Path, here: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["predict", str(trained), str(photos), "--out", "p.parquet", "top=1", "sheet=0"]) == 0
    table = parquet.read_table("p.parquet").to_pylist()
    assert accuracy(table) == pytest.approx(metrics(trained)["test/acc"], abs=1e-12)


def test_bad_photographs_are_named_and_counted(
    trained: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkdir("mixed")
    (here / "mixed" / "a.png").write_bytes(next(photos.iterdir()).read_bytes())
    (here / "mixed" / "b.png").write_bytes(b"nothing")
    assert main(["predict", str(trained), "mixed", "--out", "x.csv"]) == 2
    error = capsys.readouterr().err
    assert "unreadable photograph: mixed/b.png: not a JPEG" in error
    assert "dataset.max_bad_samples=0" in error
    assert not (here / "x.csv").exists()
    assert main(["predict", str(trained), "mixed", "dataset.max_bad_samples=1", "--out", "x.csv"]) == 0
    captured = capsys.readouterr()
    assert "mixed/b.png" in captured.err
    assert "1 photographs" in captured.out or "1 photograph" in captured.out


def test_the_best_checkpoint_is_that_of_the_monitor(trained: Path) -> None:
    ranked = checkpoint_io.read(trained / "checkpoints" / "last.ckpt")["callbacks"]["checkpoint"]["best"]
    assert Run(trained, best=True).predictor.checkpoint == checkpoints.path_of(trained, ranked[0][1])


def test_memory_is_predicted_as_files_are(trained: Path, photos: Path) -> None:
    digits = Digits("test", image_size=8)
    run = Run(trained)
    memory, files = run.predict(digits.images.numpy()), run.predict(photos)
    assert [each.ranked[0].number for each in memory] == [each.ranked[0].number for each in files]
    with pytest.raises(ValueError, match=r"uint8 \(batch, 1, 8, 8\)"):
        run.predict(digits.images[:, :, :4])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["RUN"], "needs a run and photographs"),
        (["RUN", "nowhere"], "there is no such file or folder"),
        (["RUN", "PHOTOS", "--out", "x.txt"], "must be a .csv, .json or .parquet"),
        (["RUN", "PHOTOS", "top=0"], "must be a whole number of at least 1"),
        (["RUN", "PHOTOS", "sheet=x"], "must be a whole number of at least 0"),
        (["RUN", "PHOTOS", "model=mlp"], "a network is used as it was trained"),
        (["RUN", "PHOTOS", "dataset.max_bad_samples=x"], "must be a whole number"),
        (["PHOTOS", "PHOTOS"], "this folder holds no run"),
        (["RUN/checkpoints/last.ckpt", "PHOTOS", "--best"], "chooses a checkpoint, and one is named"),
        (["RUN", "EMPTY"], "holds no images"),
    ],
)
def test_mistakes_leave_nothing(
    trained: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    (here / "RUN").symlink_to(trained)
    (here / "PHOTOS").symlink_to(photos)
    (here / "EMPTY").mkdir()
    assert main(["predict", *words]) == 2
    assert text in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["EMPTY", "PHOTOS", "RUN"]


def test_another_users_run_names_only_what_is_trusted(freeze: Freeze, photos: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    run = freeze("theirs", *QUIET)
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("leyden.models.mlp.MLP", "their_code.Net"))
    os.chown(run, 65534, 65534)
    with pytest.raises(ValueError, match=r"(?s)model\._target_.*--trust"):
        Run(run).predict(photos)


def test_files_are_prepared_as_the_datasets_own_evaluation(tmp_path: Path) -> None:
    """Pixels of image_folder's evaluation, also where it resizes, and where it is evaluated at another size."""
    (tmp_path / "train" / "a").mkdir(parents=True)
    noise = torch.randint(0, 256, (75, 110, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(noise.numpy()).save(tmp_path / "train" / "a" / "x.png")
    keys: dict[str, Any]
    for keys in ({}, {"resize": "auto"}, {"resize": 60, "crop": 50}, {"crop": 50}):
        own = ImageFolder("train", tmp_path, image_size=40, **keys).evaluation_sample(0)[0]
        assert torch.equal(Photographs(tmp_path, (3, 40, 40), **keys).evaluation_sample(0)[0], own)
    grey = Image.fromarray(noise.numpy()[:75, :75]).convert("L")
    (tmp_path / "y.png").write_bytes(b"")
    Image.fromarray(noise.numpy()[:75, :75]).save(tmp_path / "y.png")
    found = Photographs(tmp_path / "y.png", (1, 75, 75)).evaluation_sample(0)[0]
    assert torch.equal(found[0], torch.from_numpy(np.array(grey)))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [["strategy=fsdp", "strategy.min_parameters=500"], ["strategy=local_sgd"]])
def test_checkpoints_of_several_workers(
    strategy: list[str], freeze: Freeze, pools: Callable[[int], Pool], photos: Path
) -> None:
    run = freeze("two", *QUIET, *strategy, "topology.devices_per_node=2")
    pools(2).run(run)
    found = Run(run).predict(photos)
    right = sum(each.file.partition("_")[2] == f"{each.name}.png" for each in found)
    assert right / len(found) == pytest.approx(metrics(run)["test/acc"], abs=1e-12)


def test_a_run_without_checkpoint_says_so(freeze: Freeze, photos: Path) -> None:
    run = freeze("new", *QUIET)
    with pytest.raises(ValueError, match=r"has\s+no\s+checkpoint\s+yet"):
        Run(run).predict(photos)


def test_a_task_without_class_scores_is_named(freeze: Freeze, photos: Path) -> None:
    with pytest.raises(ValueError, match="Reconstruction has no forward"):
        Run(freeze("reconstruction", "experiment=cots_digits", "model.stages=1")).predict(photos)
