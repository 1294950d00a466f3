"""Fewer than two classes: refused by tasks that predict one of several, with where more are, and taken by others."""

import io
from pathlib import Path

import pytest
from PIL import Image
from runs import TINY

from leyden.trainer.cli.main import main

FOLDER = ["dataset=image_folder", "dataset.image_size=8", "dataset.root=set"]
SHORT = ["trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none", "batch_size=2"]


def photographs(*names: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(file.getvalue())


CASES = {
    "one class": (["set/train/cat/1.png"], "", ""),
    "one folder with splits": (["set/train/cat/1.png", "set/val/cat/1.png"], "", ""),
    "classes below": (["set/train/cat/a/1.png", "set/train/cat/b/1.png"], "train/cat/ has more", "set/train/cat"),
    "classes beside": (["set/train/cat/1.png", "set/more/a/1.png", "set/more/b/1.png"], "more/ has more", "set/more"),
    "a table": (["set/images/1.png", "set/labels.csv"], "labels may be in", ""),
    "a table beside": (["set/1.png", "labels.csv"], "labels may be in", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_one_class_is_refused_with_where_more_are(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, text, root = CASES[case]
    photographs(*files)
    before = sorted(here.rglob("*"))
    assert main([*FOLDER, "model=mlp"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "dataset.root = set" in error
    assert "predicts one of at least two" in error or "is not in a class folder" in error
    assert text in error
    assert ("labels.csv" in error) == ("labels.csv" in str(files))
    assert error.split("try: ")[1:] == ([f"dataset.root={root}"] if root else [])
    assert sorted(here.rglob("*")) == before
    if root:
        assert main([*FOLDER, *TINY, *SHORT, f"dataset.root={root}"]) == 0, "the remedy works"


def test_other_tasks_take_one_class(here: Path) -> None:
    photographs(*(f"set/train/cat/{number}.png" for number in range(4)))
    network = ["model=cots_autoencoder", "model.maps=1", "model.stages=1", "model.rf=3", "model.pool=2", "model.lcn=3"]
    assert main([*FOLDER, *network, "task=reconstruction", *SHORT]) == 0
