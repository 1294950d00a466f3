"""`leyden inspect augment`: a contact sheet of what the network sees."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.trainer.cli.main import main

DIGITS = ["dataset=digits", "dataset.image_size=16", "model=mlp"]


def tiles(file: Path) -> np.ndarray:
    """Rows, columns, height, width, colour of the sheet."""
    sheet = np.asarray(Image.open(file).convert("RGB"))
    side = 16 * 7 + 2
    assert sheet.shape == (8 * side, 8 * side, 3)
    return sheet.reshape(8, side, 8, side, 3).transpose(0, 2, 1, 3, 4)


def test_a_row_is_a_sample_and_a_column_an_epoch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "augment", *DIGITS, "augment=none", "--out", "plain.png"]) == 0
    assert main(["inspect", "augment", *DIGITS, "augment=crop"]) == 0
    assert "augment.png: 8 training samples, one a row, in epochs 0 to 7" in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == ["augment.png", "plain.png"]
    plain, changed = tiles(here / "plain.png"), tiles(here / "augment.png")
    assert (plain == plain[:, :1]).all(), "without augmentation every epoch is the same"
    assert len({row[0].tobytes() for row in plain}) == 8
    assert all(len({tile.tobytes() for tile in row}) > 4 for row in changed)


def test_tensorboard_shows_the_same_sheet(here: Path) -> None:
    (here / "sheets").mkdir()
    for out in ("sheet.png", "sheets"):
        assert main(["inspect", "augment", *DIGITS, "augment=crop", "--out", out]) == 0
    events = EventAccumulator(str(here / "sheets"), {"images": 1}).Reload()
    (logged,) = events.Images("images/augment")
    sheets = [
        Image.open(file).convert("RGB").tobytes() for file in (here / "sheet.png", BytesIO(logged.encoded_image_string))
    ]
    assert sheets[0] == sheets[1]


def test_batches_and_growing_images_are_drawn(here: Path) -> None:
    grown = ["augment=[airbench,mixup]", "+augment.size={0:8,4:16}"]
    assert main(["inspect", "augment", *DIGITS[:2], "model=resnet20", *grown]) == 0
    found = tiles(here / "augment.png")
    assert len({tile.tobytes() for tile in found[0]}) > 4


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["inspect"], "inspect"),
        (["inspect", "model"], "model"),
        (["inspect", "augment", "--best"], "chooses a checkpoint"),
        (["inspect", "augment", "--out", "x.jpg"], "must be a .png file"),
        (["inspect", "augment", "augment=mixup", "augment.batch.mix.mixup=-2"], "augment.batch.mix.mixup"),
        (["inspect", "augment", "augment.padding=x"], "augment.padding"),
        (["inspect", "data", "--best"], "inspect data has no run"),
        (["inspect", "data", "--out", "x.json"], "inspect data prints"),
        (["inspect", "data", "dataset.val_fraction=2"], "dataset.val_fraction"),
        (["inspect", "data", "dataset=image_folder", "dataset.root=nowhere"], "there is no such file or folder"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err
    assert not list(here.iterdir())


def test_what_is_found_in_a_dataset_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "data"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1,437 pictures of 10 classes: 0 149, ")
    header, first = (line.split() for line in printed.splitlines() if line.split()[:1] in (["class"], ["0"]))
    assert header == ["class", "train", "val", "test"]
    assert sum(map(int, first[1:3])) == 149
    assert not list(here.iterdir())


def test_bad_files_and_those_left_out_are_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cat/1.png", "cat/2.heic", "dog/1.png", "dog/2.png"):
        (here / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(here / "set" / name, "PNG")
    words = ["inspect", "data", "dataset=image_folder", "dataset.root=set"]
    assert main(words) == 0
    assert "left out: 1 file (.heic 1)" in capsys.readouterr().out
    (here / "set" / "dog" / "2.png").write_bytes(b"")
    assert main(words) == 2
    assert "dog/2.png: the file is empty" in capsys.readouterr().err
    assert main([*words, "dataset.max_bad_samples=1"]) == 0
    assert "dog/2.png: the file is empty" in capsys.readouterr().out
