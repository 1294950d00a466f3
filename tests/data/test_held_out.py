"""The validation split of data that has none: a part of each class, chosen by the names of its samples."""

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photographs import pictures

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.listing.identity import name_hashes
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.data.order.held_out import held_out_samples

HELD = {"cat/1.png", "cat/7.png", "cat/10.png", "dog/4.png", "dog/10.png", "owl/0.png"}


class Named:
    """A dataset of names below folders of classes."""

    def __init__(self, names: list[str], multi_label: bool = False):
        self.names, self.multi_label = sorted(names), multi_label
        classes = sorted({name.partition("/")[0] for name in names})
        self.labels = [classes.index(name.partition("/")[0]) for name in self.names]
        self.name_hashes = name_hashes(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def held_out(self, fraction: float = 0.2) -> set[str]:
        return {self.names[index] for index in held_out_samples(self, fraction).indices}


def of_class(name: str, samples: int) -> list[str]:
    return [f"{name}/{number}.jpg" for number in range(samples)]


def test_a_fifth_of_each_class_is_held_out() -> None:
    held = Named([*of_class("cat", 9000), *of_class("dog", 1000)]).held_out()
    for name, samples in (("cat", 9000), ("dog", 1000)):
        part = sum(each.startswith(name) for each in held)
        assert abs(part / samples - 0.2) < 3 * (0.16 / samples) ** 0.5


def test_an_added_sample_moves_no_other() -> None:
    names = [*of_class("cat", 40), *of_class("dog", 25)]
    before = Named(names).held_out()
    for number in range(200):
        assert Named([*names, f"cat/new {number}.jpg"]).held_out() - {f"cat/new {number}.jpg"} == before
    assert Named([*names, *of_class("ape", 30)]).held_out() >= before, "nor does a class"


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
@pytest.mark.parametrize("fraction", [0.0001, 0.2, 0.9999])
def test_a_small_class_loses_neither_training_nor_validation(samples: int, fraction: float) -> None:
    for number in range(30):
        held = Named(of_class(f"class {number}", samples)).held_out(fraction)
        assert (0 if samples == 1 else 1) <= len(held) < samples


def test_of_samples_with_several_labels_the_sets_are_no_classes() -> None:
    names = [name for number in range(200) for name in of_class(f"set {number}", 2)]
    assert 50 < len(Named(names, multi_label=True).held_out()) < 110
    assert Named(names).held_out(0.0) == set()


def names_of(data: Any, folder: Path) -> set[str]:
    return {data.name(index).removeprefix(f"{folder}/") for index in held_out_samples(data, 0.2).indices}


def test_places_archives_and_shards_hold_out_the_same(tmp_path: Path) -> None:
    root = pictures(tmp_path / "photos", 12)
    data = ImageFolder("train", root)
    held = names_of(data, root)
    assert held == HELD, "on every machine"
    around = shutil.copytree(root, tmp_path / "around/photos")
    assert names_of(ImageFolder("train", around.parent), around) == held
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in root.rglob("*.png"):
            archive.write(file, f"data/{file.relative_to(root)}")
    zipped = ImageFolder("train", path)
    assert {name.removeprefix("data/") for name in names_of(zipped, path)} == held
    (root / "cat/5.png").write_bytes(b"damaged")
    for kind in ("jpeg", "raw"):
        out = tmp_path / kind
        Preparation(out, {"train": data}, max_bad_samples=1, format=kind, shard_size=7).run(lambda *_: None)
        shards, kept = Shards("train", out), [n for n in range(len(data)) if not data.name(n).endswith("cat/5.png")]
        assert {data.name(kept[n]).removeprefix(f"{root}/") for n in held_out_samples(shards, 0.2).indices} == held
    tars = Shards("train", shutil.copytree(tmp_path / "jpeg", tmp_path / "tars", ignore=lambda *_: ["index.json"]))
    assert tars.name_hashes is not None
    assert len(set(tars.name_hashes.tolist())) == len(tars), "by shard and key"


def test_what_has_no_names_is_divided_as_a_whole() -> None:
    data = type("Unnamed", (), {"__len__": lambda _: 50})()
    assert len(held_out_samples(data, 0.2).indices) == 10
    assert held_out_samples(data, 0.001) == ([], False)


def test_shards_of_a_source_without_names_have_none(tmp_path: Path) -> None:
    class Source:
        classes, image_shape, splits = 2, (3, 8, 8), ("train",)

        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return torch.full((3, 8, 8), index, dtype=torch.uint8), index % 2

    Preparation(tmp_path / "out", {"train": Source()}).run(lambda *_: None)
    data = Shards("train", tmp_path / "out", 8)
    assert data.name_hashes is None
    assert held_out_samples(data, 0.2) == held_out_samples(Source(), 0.2)
    assert np.unique(data.labels).tolist() == [0, 1]
