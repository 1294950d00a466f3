"""A run's data is part of its identity: what has changed is named, and goes on only if it is accepted."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from photographs import picture, pictures
from runs import Freeze, cut_back, summary

from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.cli.main import main
from leyden.trainer.data.contents.identity import changes
from leyden.trainer.entrypoints.start import start

SMALL = ["dataset=image_folder", "dataset.image_size=8", "dataset.resize=null", "model=mlp", "model.hidden=[4]",
         "augment=none", "batch_size=4", "trainer.enable_progress_bar=false", "topology=cpu",
         "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=99"]  # fmt: skip


def recorded(run_dir: Path) -> Any:
    return json.loads((run_dir / "data.json").read_text())


def zipped(root: Path) -> Path:
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*.png")):
            archive.write(file, file.relative_to(root))
    return path


def test_a_fingerprint_is_of_names_sizes_and_classes_and_not_of_places_and_times(tmp_path: Path) -> None:
    root = pictures(tmp_path / "a", 2)
    whole = ImageFolder("train", root).fingerprint()
    moved = shutil.copytree(root, tmp_path / "photos/photos")
    for file in moved.rglob("*.png"):
        file.touch()
    assert ImageFolder("train", moved.parent).fingerprint() == whole
    assert ImageFolder("train", zipped(root)).fingerprint() == whole
    picture(moved / "cat/0.png", 0, side=9)
    assert ImageFolder("train", moved).fingerprint() != whole
    (root / "cat/0.png").rename(root / "cat/zero.png")
    assert ImageFolder("train", root).fingerprint() != whole


def found(train: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"splits": {"train": {"samples": sum(train.values()), "classes": train}}, "fingerprint": {}} | more


def test_what_has_changed_is_named() -> None:
    before = found({"cat": 160, "owl": 1}, fingerprint={"train": "a b"})
    assert list(changes(before, before)) == []
    now = found({"cat": 163, "elk": 1}, fingerprint={"train": "b b"})
    assert list(changes(before, now)) == [
        "train: cat: 160 pictures before, 163 now", "train: class owl is gone", "train: class elk is new",
    ]  # fmt: skip
    renamed = found({"cat": 160, "owl": 1}, fingerprint={"train": "b b"})
    assert list(changes(before, renamed)) == ["train: names of files, or their classes, are others"]
    repaired = found({"cat": 160, "owl": 1}, fingerprint={"train": "a c"})
    assert list(changes(before, repaired)) == ["train: sizes of files are others"]
    unread = [{"splits": {"train": {"samples": n}, "val": None}, "fingerprint": {}} for n in (5, 6, None)]
    assert list(changes(unread[0], unread[1])) == ["train: 5 samples before, 6 now"]
    assert list(changes(unread[0], unread[2])) == []
    rule = found({"cat": 9}, held_out=0.2)
    assert list(changes(rule, {**rule, "held_out_by": "name"})) == [
        "validation: held out of each class by the pictures' names now, and of all of them together before"
    ]
    divided = [{**each, "workers": workers} for each, workers in zip(unread, (2, 3, 3), strict=True)]
    assert list(changes(divided[0], divided[1])) == []  # a data module's share of two workers, and of three


@pytest.fixture
def stopped(freeze: Freeze, tmp_path: Path) -> Path:
    """A run of two epochs that was killed in the middle of the second."""
    root = pictures(tmp_path / "photos")
    run_dir = freeze("whole", *SMALL, f"dataset.root={root}", "trainer.max_epochs=2")
    assert start(run_dir) == 0
    steps = summary(run_dir)["steps"] // 2
    killed = cut_back(run_dir, tmp_path / "run", steps + 2)
    text = (killed / "summary.json").read_text()
    (killed / "summary.json").write_text(text.replace('"done"', '"running"'))
    return killed


def test_another_content_is_refused_and_may_be_accepted_once(
    stopped: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture(tmp_path / "photos/cat/new.png", 99)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != "run.log"}
    assert main(["resume", str(stopped)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "train: cat: 10 pictures before, 11 now" in error
    assert f"try: leyden resume {stopped} dataset.changed=accept" in error
    assert {path: path.read_bytes() for path in before} == before
    assert main(["eval", str(stopped)]) == 0
    printed = capsys.readouterr()
    warned = " ".join((printed.out + printed.err).split())
    assert "may not be what the run was trained on: train: cat: 10 pictures before, 11 now" in warned
    old = recorded(stopped)
    assert main(["resume", str(stopped), "dataset.changed=accept", "trainer.max_epochs=4"]) == 0
    told = summary(stopped)
    (own,) = recorded(stopped)["history"]
    assert own["changed"] == ["train: cat: 10 pictures before, 11 now"]
    assert own["fingerprint"] == old["fingerprint"]
    assert told["epochs"] == 4
    an_epoch = -(-recorded(stopped)["splits"]["train"]["samples"] // 4)
    assert told["sessions"][-1]["steps"] == 2 * an_epoch, "the rest of the second epoch is left"
    (tmp_path / "photos/cat/new.png").unlink()
    assert main(["resume", str(stopped), "trainer.max_epochs=5"]) == 2, "accepted for one session"


def test_a_session_that_accepted_and_was_killed_before_it_saved_goes_on_at_the_next_epoch_all_the_same(
    stopped: Path, tmp_path: Path
) -> None:
    from leyden.trainer.config.schema import load
    from leyden.trainer.data.contents.found import count_samples, keep
    from leyden.trainer.data.splits import Splits

    picture(tmp_path / "photos/cat/new.png", 99)
    (stopped / "resume.yaml").write_text("- {at: now, changed: {dataset.changed: accept, trainer.max_epochs: 3}}\n")
    keep(count_samples(Splits.of(load(stopped).dataset), 0.2), stopped)
    assert start(stopped, "resume") == 0
    an_epoch = -(-recorded(stopped)["splits"]["train"]["samples"] // 4)
    assert summary(stopped)["sessions"][-1]["steps"] == an_epoch


def test_the_same_content_at_another_place_goes_on(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = zipped(tmp_path / "photos")
    moved = (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert main(["resume", str(stopped)]) == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "whole"), f"dataset.root={archive}"]) == 0
    assert main(["resume", str(stopped), f"dataset.root={moved}"]) == 0
    ends = [summary(run)["metrics"] for run in (tmp_path / "whole", stopped)]
    assert {name: ends[0][name] for name in ("val/loss", "train/loss")} == {
        name: ends[1][name] for name in ("val/loss", "train/loss")
    }
    assert "history" not in recorded(stopped)


def test_a_run_without_a_record_goes_on_unless_its_validation_may_have_been_trained_on(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / "data.json").unlink()
    assert main(["resume", str(stopped)]) == 2
    assert "nothing says which pictures its validation had" in " ".join(capsys.readouterr().err.split())
    for split in ("train", "val"):
        shutil.copytree(tmp_path / "photos", tmp_path / "divided" / split)
    assert main(["resume", str(stopped), f"dataset.root={tmp_path / 'divided'}"]) == 0
