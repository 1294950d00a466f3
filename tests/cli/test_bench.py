"""`leyden bench data`: figures of a data pipeline."""

import json
from pathlib import Path

import pytest
from PIL import Image
from runs import HERE

from leyden.trainer.cli.main import main
from leyden.trainer.data import loading_bench


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading_bench, "_IMAGES", 32)
    monkeypatch.setattr(loading_bench, "_ROUNDS", 1)
    monkeypatch.setattr(loading_bench.threads, "cores", lambda: 5)
    monkeypatch.chdir(tmp_path)


def images(folder: Path) -> list[str]:
    for number in range(40):
        place = folder / "images" / ("dark", "light")[number % 2] / f"{number:02}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40 + number), (number, 6 * number, 90)).save(place)
    return ["dataset=image_folder", f"dataset.root={folder / 'images'}", "dataset.image_size=16", "model=mlp",
            "batch_size=8"]  # fmt: skip


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, float]]:
    assert main(["bench", "data", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_stages_and_threads_of_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = images(tmp_path)
    unsafe = "dataset._target_=reading_examples.UnsafeFolder"
    before = sorted(tmp_path.iterdir())
    found = measured(capsys, *words, "augment=imagenet")
    assert found["images_per_second"].keys() == {"0", "1", "2", "5"}
    assert str(found["threads"]) in found["images_per_second"]
    assert found["cpu_ms"].keys() == {"read + decode", "crop + resize", "collate", "batch augmentation"}
    assert all(value > 0 for value in found["images_per_second"].values())
    assert (found["images"], found["cores"]) == (31, 5), "the names hold out 9 of 40"
    plain = measured(capsys, *words, unsafe, "augment=crop_flip", f"+{HERE}")
    assert plain["images_per_second"].keys() == {"0", "1"}, "it does not say that several threads may read it"
    assert list(plain["cpu_ms"])[:2] == ["read + decode + resize", "augmentation of single images"]
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


def test_data_in_memory_has_no_threads(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "model=mlp")
    assert found["images_per_second"].keys() == {"0"}
    assert found["cpu_ms"].keys() == {"batches from memory", "batch augmentation"}
    assert main(["bench", "data", "model=mlp"]) == 0
    text = capsys.readouterr().out
    assert "0 (the loop itself)" in text
    assert "batches from memory" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bench"], "must be data"),
        (["bench", "model"], "must be data"),
        (["bench", "data", "dataset=image_folder", "dataset.root=NOWHERE"], "NOWHERE"),
        (
            ["bench", "data", "--out", "x.png"],
            "leyden bench has no such flag",
        ),
    ],
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err
