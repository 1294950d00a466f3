"""`experiment=finetune_photos`: from a stranger's folder and a public file of weights to a table of predictions."""

import csv
from pathlib import Path

import numpy as np
import public_weights as public
import pytest
from PIL import Image
from runs import Freeze, summary
from safetensors.torch import save_file

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start

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
def test_a_folder_to_predictions(freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photographs(tmp_path / "photos", 30)
    photographs(tmp_path / "new", 2)
    (tmp_path / "photos/sea/broken.jpg").write_bytes(b"\xff\xd8\xff")
    weights = tmp_path / "resnet18.safetensors"
    save_file({name: value.contiguous() for name, value in public.resnet(18, classes=1000).items()}, weights)
    run_dir = freeze(
        "run", "experiment=finetune_photos", f"dataset.root={tmp_path / 'photos'}", f"model.pretrained={weights}",
        "dataset.image_size=64", "trainer.max_epochs=4", "batch_size=8",
    )  # fmt: skip
    assert start(run_dir) == 0
    printed = capsys.readouterr().out
    assert (
        "120 of 122 tensors; the output layer starts fresh: model.classifier.bias, model.classifier.weight" in printed
    )
    assert summary(run_dir)["metrics"]["val/acc"] >= 0.8
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(run_dir), str(tmp_path / "new"), "--out", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 6
    right = sum(Path(row["file"]).parent.name == row["name_1"] for row in rows)
    assert right >= 5, rows
