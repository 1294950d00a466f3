"""Where the classes and splits of a folder of images are found, and what is said about what is not read."""

from pathlib import Path

import pytest
from class_folders import CLASSES, KINDS, Build, below, directory

from leyden.datasets.cifar10 import CIFAR10
from leyden.datasets.image_folder import ImageFolder


def samples(root: Path, split: str) -> int:
    return len(ImageFolder(split, root))


# --- names of splits


@pytest.mark.parametrize(
    "folders",
    [
        ("train", "valid"), ("train", "validation", "testing"), ("Training", "dev", "Test"),
        ("TRAIN", "VAL", "evaluation"),
        ("training", "Validation", "eval"),
    ],
)  # fmt: skip
@KINDS
def test_the_usual_names_of_splits_are_those_splits(tmp_path: Path, build: Build, folders: tuple[str, ...]) -> None:
    root = build(tmp_path / "set", below(*folders))
    data = ImageFolder("train", root)
    assert data.splits == ("train", "val", "test")[: len(folders)]
    assert data.class_names == ("cat", "dog")
    assert [samples(root, split) for split in data.splits] == [3] * len(folders)
    assert ImageFolder("val", root).name(0).endswith(f"{folders[1]}/cat/1.png")


def test_of_two_folders_of_a_split_the_first_usual_name_counts(tmp_path: Path) -> None:
    root = directory(tmp_path, [*below("train", "valid"), "val/cat/9.png", "VAL/cat/8.png"])
    assert ImageFolder("val", root).name(0).endswith("val/cat/9.png")
    assert samples(root, "val") == 1


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    root = directory(tmp_path, ["train/1.png", "test/1.png", "dev/1.png", "bus/1.png"])
    assert ImageFolder("train", root).class_names == ("bus", "dev", "test", "train")


def test_labels_from_a_file_know_the_usual_names_of_splits(tmp_path: Path) -> None:
    root = directory(tmp_path / "set", ["training/1.png", "training/2.png", "valid/1.png"])
    (tmp_path / "labels.csv").write_text("image,labels\ntraining/1.png,cat\ntraining/2.png,dog\nvalid/1.png,cat;dog\n")
    assert len(ImageFolder("val", root, labels=tmp_path / "labels.csv")) == 1


@KINDS
@pytest.mark.parametrize("folders", [("valid",), ("val", "test")])
def test_splits_without_one_for_training_are_no_classes(tmp_path: Path, build: Build, folders: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"set\S* has val.*, but no train/") as raised:
        ImageFolder("train", build(tmp_path / "set", below(*folders)))
    assert (f"dataset.root={tmp_path}/set/{folders[0]} is that alone" in str(raised.value)) == (build is directory)


# --- lone folders


@KINDS
def test_cifars_folders_of_classes_are_found_likewise(tmp_path: Path, build: Build) -> None:
    """The error is that of the first image, which is empty: its folder was read."""
    root = build(tmp_path / "set", ["photos/cifar/Training/cat/1.png", "photos/cifar/testing/dog/1.png"])
    for split, name in (("train", "Training/cat"), ("test", "testing/dog")):
        with pytest.raises(ValueError, match=rf"cifar/{name}/1\.png"):
            CIFAR10(split, root)


@KINDS
@pytest.mark.parametrize("around", ["photos", "photos/photos", "data/photos/by class"])
@pytest.mark.parametrize("splits", [(), ("train", "valid")])
def test_lone_folders_around_the_classes_are_stepped_into(
    tmp_path: Path, build: Build, around: str, splits: tuple[str, ...]
) -> None:
    inside = below(*splits) if splits else CLASSES
    root = build(tmp_path / "set", [f"{around}/{name}" for name in inside] + ["readme.txt"])
    data = ImageFolder("train", root)
    assert data.class_names == ("cat", "dog")
    assert len(data) == 3
    assert data.splits == (("train", "val") if splits else ("train",))


@KINDS
def test_a_lone_class_is_not_stepped_into(tmp_path: Path, build: Build) -> None:
    root = build(tmp_path / "set", ["cat/1.png", "cat/old/2.png"])
    assert ImageFolder("train", root).class_names == ("cat",)


def test_folders_below_a_class_change_nothing_and_samples_are_in_the_order_of_names(tmp_path: Path) -> None:
    names = ["cat-2/1.png", "cat/a/3.png", "cat/b/c/1.png", "cat/z.png", "cat0/1.png"]
    root = directory(tmp_path, reversed(names))
    data = ImageFolder("train", root)
    assert [data.name(place).removeprefix(f"{root}/") for place in range(len(data))] == sorted(names)
    assert data.class_names == ("cat", "cat-2", "cat0")
    assert data.labels.tolist() == [1, 0, 0, 0, 2]
