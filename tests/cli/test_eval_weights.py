"""`leyden eval KEY=VALUE ...`: the weights that a config begins with, without a run; labels by the names of classes."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import SHARED_DATA
from PIL import Image
from safetensors.torch import save_file

from leyden.trainer.base.paths import exists
from leyden.trainer.cli.main import main

PHOTOGRAPHS = SHARED_DATA / "imagenet-sample.zip"
NAMES = ["red", "grey", "blue", "green"]
"""Of the network's outputs: neither in the order of the folders, nor only those."""
TINY = ["model=mlp", "model.hidden=[]", "dataset=image_folder", "dataset.root=PHOTOS", "dataset.image_size=4",
        "trainer.enable_progress_bar=false"]  # fmt: skip


def network(outputs: list[str]) -> dict[str, torch.Tensor]:
    """A linear layer that prefers an output by the mean of its colour's channel; the brightness is grey."""
    weight = torch.zeros(len(outputs), 3, 16)
    for row, name in zip(weight, outputs, strict=True):
        if name in ("red", "green", "blue"):
            row[("red", "green", "blue").index(name)] = 1.0
    return {"layers.1.weight": weight.flatten(1), "layers.1.bias": torch.zeros(len(outputs))}


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with PHOTOS (4 blue, 3 green, 2 red), weights of NAMES in a package, and of the three in a file."""
    monkeypatch.syspath_prepend(here)
    for name, count, colour in (("blue", 4, (0, 0, 255)), ("green", 3, (0, 255, 0)), ("red", 2, (255, 0, 0))):
        photographs(here / "PHOTOS" / name, count, colour)
    package = here / "tiny_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('packages of weights are not imported')")
    (package / "classes.json").write_text(json.dumps({name: number for number, name in enumerate(NAMES)}))
    torch.save(network(NAMES), package / "weights.pth")
    three = network(["blue", "green", "red"])
    save_file(three, here / "three.safetensors")
    first = {"layers.1.weight": torch.zeros(5, 48), "layers.1.bias": torch.zeros(5)}
    save_file(
        {**first, "layers.3.weight": torch.zeros(3, 5), "layers.3.bias": torch.zeros(3)}, here / "deep.safetensors"
    )
    return here


def photographs(folder: Path, count: int, colour: tuple[int, int, int]) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(np.full((6, 7, 3), colour, dtype=np.uint8)).save(folder / f"{number}.png")


def packaged() -> list[str]:
    digest = hashlib.sha256(Path("tiny_weights/weights.pth").read_bytes()).hexdigest()
    classes = "classes:{package:tiny_weights,file:classes.json}"
    node = f"{{package:tiny_weights,file:weights.pth,sha256:'{digest}',install:nothing,{classes}}}"
    return [f"+model.public_weights={node}", "model.pretrained=true"]


def evaluated(*words: str) -> dict[str, Any]:
    before = sorted(Path().rglob("*"))
    assert main(["eval", *words, "--out", "metrics.json"]) == 0
    file = Path("metrics.json")
    found = json.loads(file.read_text())
    file.unlink()
    assert sorted(Path().rglob("*")) == before, "no run folder, and nothing else"
    return found


def test_labels_are_matched_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(*TINY, *packaged())
    assert found["metrics"]["test/acc"] == 1.0
    assert found["run"] is None
    assert found["model"]["pretrained"]["source"] == "package:tiny_weights"
    assert "test/acc     1" in capsys.readouterr().out
    assert evaluated(*TINY, *packaged(), "--crops", "5")["metrics"]["test/acc"] == 1.0


@pytest.mark.parametrize("words", [["init_from=three.safetensors"], ["model.pretrained=three.safetensors"]])
def test_a_network_without_names_is_evaluated_by_order(words: list[str], here: Path) -> None:
    photographs(here / "PHOTOS" / "red" / "more", 1, (0, 255, 0))
    assert evaluated(*TINY, *words)["metrics"]["test/acc"] == pytest.approx(0.9)


def test_splits_are_evaluated_apart(here: Path) -> None:
    for split in ("train", "val"):
        photographs(here / "SPLIT" / split / "blue", 1, (0, 0, 255))
        photographs(here / "SPLIT" / split / "red", 2, (255, 0, 0) if split == "val" else (0, 0, 0))
    words = [*TINY, "dataset.root=SPLIT", *packaged(), "batch_size=1000"]
    assert {name: value for name, value in evaluated(*words)["metrics"].items() if "acc" in name} == {"val/acc": 1.0}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "model.pretrained = null and init_from name no weights, and a network that nobody has trained is not"),
        (["model=efficientnet_lite0"], "try: model.pretrained=true"),
        (["init_from=three.safetensors", "dataset.root=TWO"], "none of its 2 tensors has name and shape of one"),
        (
            ["model.hidden=[5]", "init_from=deep.safetensors", "dataset.root=TWO"],
            "does not have all of a network for this data, "
            "and what is not trained cannot be evaluated: model.layers.3.bias, model.layers.3.weight",
        ),
        (
            ["model.hidden=[5]", "model.pretrained=deep.safetensors", "dataset.root=TWO"],
            "does not have all of a network",
        ),
        (["PACKAGED", "model.hidden=[5]"], "model.pretrained = package:tiny_weights does not fit the network"),
        (["PACKAGED", "dataset.root=TWO"], "has 1 of 2 classes that package:tiny_weights does not know: pink"),
        (
            ["PACKAGED", "model.public_weights.classes.package=not_there"],
            "the package not_there, which is not installed",
        ),
        (["init_from=three.safetensors", "dataset.root=FLAT"], "is not in a class folder"),
        (["init_from=three.safetensors", "hydra.mode=MULTIRUN"], "one config is evaluated"),
        (["init_from=three.safetensors", "topology.launcher=node"], "topology.launcher=local"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_named(words: list[str], text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("blue", "pink"):
        photographs(here / "TWO" / name, 2, (9, 9, 9))
    photographs(here / "FLAT", 2, (9, 9, 9))
    before = sorted(here.rglob("*"))
    given = [each for word in words for each in (packaged() if word == "PACKAGED" else [word])]
    assert main(["eval", *TINY, *given]) == 2
    error = capsys.readouterr().err
    assert text in " ".join(error.split()), error
    assert "Traceback" not in error
    assert sorted(here.rglob("*")) == before


@pytest.mark.skipif(not exists(PHOTOGRAPHS), reason="no photographs of ImageNet here")
def test_photographs_by_public_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of twelve classes each, among a thousand outputs; of all 600 photographs 524 are right."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(PHOTOGRAPHS) as every, zipfile.ZipFile("SOME.zip", "w") as some:
        names = [name for name in every.namelist() if not name.endswith("/")]
        for name in names[::50]:
            some.writestr(name, every.read(name))
    words = ["model=efficientnet_lite0", "model.pretrained=true", "dataset=image_folder", "dataset.root=SOME.zip"]
    assert evaluated(*words)["metrics"]["test/acc"] >= 9 / 12
