"""`leyden eval RUN dataset=...`: a run on other images than its own, with its own normalization; metrics as JSON."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import metrics

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose.evaluated_data import refuse_data_modules
from leyden.trainer.config.schema import EVALUATION_DATASET

COLOURS = {"cat": (150, 90, 60), "dog": (60, 90, 150), "owl": (90, 150, 60)}
RUN = ["dataset=image_folder", "dataset.root=PHOTOS", "dataset.image_size=8", "model=mlp", "model.hidden=[8]",
       "batch_size=8", "schedule.warmup_steps=15", "trainer.max_epochs=4", "trainer.enable_progress_bar=false",
       "hydra.run.dir=RUN"]  # fmt: skip
OTHER = "dataset=image_folder"
EARLIER = """
from leyden.datasets.image_folder import ImageFolder

class Otherwise(ImageFolder):
    mean, std = (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)
"""


def photographs(root: Path, each: int, seed: int, names: tuple[str, ...] = tuple(COLOURS)) -> None:
    generator = np.random.default_rng(seed)
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(each):
            tint = COLOURS.get(name, (0, 0, 0)) + generator.normal(0, 50, 3)
            pixels = np.clip(tint + generator.normal(0, 60, (12, 14, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PHOTOS, RUN, trained on them, and the test photographs alone as FLAT/CLASS/IMAGE."""
    folder = tmp_path_factory.mktemp("eval")
    for number, (split, each) in enumerate({"train": 12, "val": 4, "test": 6}.items()):
        photographs(folder / "PHOTOS" / split, each, number)
    shutil.copytree(folder / "PHOTOS" / "test", folder / "FLAT")
    (folder / "otherwise.py").write_text(EARLIER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(RUN) == 0
    assert 0.4 < metrics(folder / "RUN")["test/acc"] < 1.0, "else equal accuracy would say little"
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def evaluated(*words: str) -> dict[str, Any]:
    assert main(["eval", "RUN", *words, "--out", "metrics.json"]) == 0
    return json.loads(Path("metrics.json").read_text())


def of_split(values: dict[str, float], split: str) -> dict[str, Any]:
    return {name: pytest.approx(value, rel=1e-6) for name, value in values.items() if name.startswith(f"{split}/")}


def test_the_file_has_what_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {
        path: path.read_bytes() for path in (here / "RUN").rglob("*") if path.is_file() and path.name != "run.log"
    }
    found = evaluated()
    assert (found["run"], found["step"]) == (str(here / "RUN"), 20)
    assert found["metrics"] == {**of_split(metrics(here / "RUN"), "val"), **of_split(metrics(here / "RUN"), "test")}
    printed = capsys.readouterr().out
    assert f"test/acc     {found['metrics']['test/acc']:.6g}" in printed
    assert before == {path: path.read_bytes() for path in before}


def test_all_images_of_a_folder_without_splits_are_evaluated(here: Path) -> None:
    """At the run's size; these are its own test images."""
    found = evaluated(OTHER, "dataset.root=FLAT")
    assert found["metrics"] == of_split(metrics(here / "RUN"), "test")
    assert found["dataset"]["root"] == str(here / "FLAT")
    assert found["dataset"]["image_size"] == 8


def test_images_are_normalized_as_in_training(here: Path) -> None:
    found = evaluated(OTHER, "dataset._target_=otherwise.Otherwise", "dataset.root=FLAT")
    assert found["metrics"] == of_split(metrics(here / "RUN"), "test")


def test_the_runs_own_data_may_have_moved_or_be_gone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "PHOTOS").rename(here / "MOVED")
    try:
        assert evaluated("dataset.root=MOVED")["metrics"].keys() >= {"val/acc", "test/acc"}
        capsys.readouterr()
        assert evaluated(OTHER, "dataset.root=FLAT")["metrics"] == of_split(metrics(here / "RUN"), "test")
        assert "class names are not compared" in "".join(capsys.readouterr())
    finally:
        (here / "MOVED").rename(here / "PHOTOS")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            [OTHER, "dataset.root=TWO"],
            "trained on the classes ['cat', 'dog', 'owl'], and this dataset has the classes ['cat', 'dog']",
        ),
        ([OTHER, "dataset.root=NAMES"], "and this dataset has the classes ['cat', 'dog', 'eel']"),
        (
            [OTHER, "dataset.root=FLAT", "dataset.image_size=9"],
            "shape 3 x 8 x 8, and this dataset has images of the shape 3 x 9 x 9",
        ),
        ([OTHER], "dataset.root"),
        ([OTHER, "dataset.root=nowhere"], "set by override 'dataset.root=nowhere'"),
        (["dataset=image_foldr"], "image_folder"),
        (["dataset.root=FLAT,TWO"], "one value for each key"),
        (["dataset=null"], "dataset = null must be a dataset, and that of the run, too"),
        (["dataset.image_size=16"], "leyden eval RUN dataset=NAME dataset.image_size=16"),
        (["model=lenet5"], "a run is evaluated as it was trained"),
        (["--out", "metrics.csv"], "must be a .json file in a folder that exists"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_named(words: list[str], text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, classes in {"TWO": ("cat", "dog"), "NAMES": ("cat", "dog", "eel")}.items():
        if not (here / name).exists():
            photographs(here / name, 2, 5, classes)
    assert main(["eval", "RUN", *words]) == 2
    error = capsys.readouterr().err
    assert text in " ".join(error.split()), error
    assert "Traceback" not in error


@pytest.mark.parametrize("module", ["own", "other"])
def test_a_data_module_is_no_other_data(module: str, here: Path) -> None:
    nodes = {name: {"_target_": "leyden.datasets.image_folder.ImageFolder"} for name in ("own", "other")}
    nodes[module]["_target_"] = "lightning.pytorch.LightningDataModule"
    run: Any = SimpleNamespace(folder=here / "RUN", values={"dataset": nodes["other"]})
    with pytest.raises(ConfigError, match="must be a dataset, and that of the run, too"):
        refuse_data_modules(run, {EVALUATION_DATASET: json.dumps({"own": nodes["own"]})})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_own_dataset_of_another_users_run_is_not_built(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Although only the other one is evaluated."""
    shutil.copytree(here / "RUN", here / "THEIRS")
    file = here / "THEIRS" / "config.yaml"
    file.write_text(file.read_text().replace("leyden.datasets.image_folder.ImageFolder", "otherwise.Otherwise"))
    os.chown(here / "THEIRS", 65534, 65534)
    assert main(["eval", "THEIRS", OTHER, "dataset.root=FLAT"]) == 2
    error = capsys.readouterr().err
    assert "dataset._target_ = otherwise.Otherwise" in error
    assert "--trust" in error


@pytest.mark.slow
def test_two_workers_share_the_other_data(here: Path) -> None:
    assert main([*RUN[:-1], "hydra.run.dir=TWO_WORKERS", "strategy=ddp", "topology.devices_per_node=2"]) == 0
    words = [OTHER, "dataset.root=FLAT", "--out", "two.json"]
    assert main(["eval", "TWO_WORKERS", *words]) == 0
    found = json.loads(Path("two.json").read_text())["metrics"]
    assert found == of_split(metrics(here / "TWO_WORKERS"), "test")
