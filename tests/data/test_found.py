"""What the first lines of a run, and data.json, say about the data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from class_folders import CLASSES, KINDS, Build, below, directory
from torch import Tensor

from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.data.contents.found import count_in_loaders, count_samples, describe_found
from leyden.trainer.data.splits import Splits, Subset

UNREAD = [
    "readme.txt", "train/owl/1.heic", "train/owl/2.HEIC", "train/owl/notes", "train/cat/1.heic",
    "train/cat/old/Thumbs.db", "drafts/1.png", "drafts/2.heic", "docs/a.pdf", "test/1.png", "test/2.xml", "stray.png",
    ".hidden.txt",
]  # fmt: skip


def splits(root: Path, held_out: int = 0, **arguments: Any) -> Splits:
    """Those of a folder; without folders of splits the first samples are held out."""
    whole: Any = ImageFolder("train", root, **arguments)
    places = range(len(whole))
    own: dict[str, Any] = {each: ImageFolder(each, root, **arguments) for each in whole.splits[1:]}
    train, val = (Subset(whole, places[held_out:]), Subset(whole, places[:held_out])) if held_out else (whole, None)
    return Splits(whole, train, own.get("val", val), own.get("test"), by_name=bool(held_out))


def lines(found: Splits) -> list[str]:
    return describe_found(count_samples(found, 0.2))


def test_pictures_are_counted_by_class(tmp_path: Path) -> None:
    assert lines(splits(directory(tmp_path / "a", CLASSES), held_out=1)) == [
        "3 pictures of 2 classes: cat 2, dog 1; validation: 20 % of each class, the same for every seed "
        "(1, none of dog); test: none"
    ]
    root = directory(tmp_path / "b", [f"data/{name}" for name in [*below("train", "valid"), "test/cat/1.png"]])
    assert lines(splits(root)) == [
        "3 pictures of 2 classes: cat 2, dog 1, in data/; validation: 3; test: 1, none of dog"
    ]


def test_of_more_than_ten_classes_the_smallest_and_the_largest_are_named(tmp_path: Path) -> None:
    names = [
        f"class {number:02}/{image}.png" for number in range(11) for image in range(3 + (number == 4) - (number == 7))
    ]
    assert lines(splits(directory(tmp_path, names))) == [
        "33 pictures of 11 classes, the smallest class 07 2, the largest class 04 4; validation: none; test: none"
    ]


@KINDS
@pytest.mark.parametrize("around", ["", "photos/", "photos/2025/"])
def test_what_is_left_out_is_said(tmp_path: Path, build: Build, around: str) -> None:
    root = build(tmp_path / "set", [around + name for name in [*below("train", "valid"), *UNREAD]])
    data = ImageFolder("train", root)
    assert data.folder == around
    assert data.left_out == {
        ".db": 1, ".heic": 1, ".txt": 1, "all of train/owl/: .heic, files without suffix": 3, "folder docs/": 1,
        "folder drafts/": 2, "folder test/ without class folders": 2, "images beside train/": 1,
    }  # fmt: skip
    assert lines(splits(root))[1] == (
        "left out: 3 files (.db 1, .heic 1, .txt 1), all of train/owl/: .heic, files without suffix (3), "
        "folder docs/ (1), folder drafts/ (2), folder test/ without class folders (2), images beside train/ (1)"
    )


def test_a_class_without_folders_of_splits_that_loses_all_is_named(tmp_path: Path) -> None:
    root = directory(tmp_path, [*CLASSES, "owl/1.heic", "cat/3.heic", "cat/4.heic", "readme"])
    assert lines(splits(root))[1:] == ["left out: 2 files (.heic 2), files without suffix (1), all of owl/: .heic (1)"]
    assert lines(splits(directory(tmp_path / "all", CLASSES)))[1:] == []


def test_a_long_list_of_what_is_left_out_is_shortened(tmp_path: Path) -> None:
    root = directory(tmp_path, [*CLASSES, *(f"lost {number:02}/1.heic" for number in range(12))])
    assert lines(splits(root))[1].endswith("all of lost 09/: .heic (1) and 2 more")


def test_images_with_several_labels_count_for_each(tmp_path: Path) -> None:
    root = directory(tmp_path / "set", ["1.png", "2.png", "3.png", "4.raw"])
    (tmp_path / "labels.csv").write_text("image,labels\n1.png,cat;dog\n2.png,cat\n3.png,\n")
    assert lines(splits(root, labels=tmp_path / "labels.csv")) == [
        "3 pictures, each with any number of 2 classes: cat 2, dog 1; validation: none; test: none",
        "left out: 1 file (.raw 1)",
    ]


@pytest.mark.parametrize("header", ["image,label", "File,Class", "filename,label"])
@KINDS
def test_a_table_may_give_each_image_one_class(tmp_path: Path, build: Build, header: str) -> None:
    root = build(tmp_path / "set", ["train/1.png", "train/2.png", "valid/1.png", "drafts/1.png"])
    table = tmp_path / "labels.csv"
    table.write_text(f"{header}\ntrain/1.png,dog;big\ntrain/2.png,cat\nvalid/1.png,cat\n")
    data = ImageFolder("train", root, labels=table)
    assert (data.class_names, data.labels.tolist(), data.multi_label) == (("cat", "dog;big"), [1, 0], False)
    assert ImageFolder("val", root, labels=table).labels.tolist() == [0]
    assert lines(splits(root, labels=table)) == [
        "2 pictures of 2 classes: cat 1, dog;big 1; validation: 1, none of dog;big; test: none",
        "left out: images beside the splits (1)",
    ]
    table.write_text(f"{header}\ntrain/1.png,\n")
    with pytest.raises(ValueError, match=r"line 2: train/1\.png has no label"):
        ImageFolder("train", root, labels=table)


def test_a_class_that_validation_lacks_and_names_that_look_alike_are_said(tmp_path: Path) -> None:
    root = directory(tmp_path, ["train/Cat/1.png", "train/cat/1.png", "train/dog/1.png", "val/cat/1.png"])
    assert lines(splits(root)) == [
        "3 pictures of 3 classes: Cat 1, cat 1, dog 1; validation: 1, none of Cat, dog; test: none",
        "different classes with names that look alike: 'Cat' and 'cat'",
    ]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_of_a_spreadsheet_is_read(tmp_path: Path, separator: str) -> None:
    root = directory(tmp_path / "set", ["1.png", "2.png"])
    rows = ["image,label", "1.png,dog", "2.png,cat"]
    text = "\r\n".join(row.replace(",", separator) for row in rows)
    (tmp_path / "labels.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert ImageFolder("train", root, labels=tmp_path / "labels.csv").labels.tolist() == [1, 0]


def test_names_that_would_break_the_line_are_spelled(tmp_path: Path) -> None:
    root = directory(tmp_path, ["a\nb/1.png", "c/1.png"])
    assert lines(splits(root)) == ["2 pictures of 2 classes: 'a\\nb' 1, c 1; validation: none; test: none"]


def test_labels_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    root = directory(tmp_path / "set", ["1.png"])
    (tmp_path / "labels.csv").write_bytes("image,label\n1.png,kätze\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 2: the label k\?tze is not UTF-8"):
        ImageFolder("train", root, labels=tmp_path / "labels.csv")


class Users:
    """A dataset of the user's, which tells what the protocol asks for and no more."""

    classes = 3
    image_shape = (1, 8, 8)
    splits = ("train",)

    def __init__(self, **more: Any):
        vars(self).update(more)

    def __len__(self) -> int:
        return 1200

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "1,200 pictures of 3 classes"),
        ({"labels": ["cat", "dog", "owl"] * 400}, "1,200 pictures of 3 classes"),
        ({"labels": [5] * 1200}, "1,200 pictures of 3 classes"),
        ({"labels": [0]}, "1,200 pictures of 3 classes"),
        ({"labels": lambda: 1}, "1,200 pictures of 3 classes"),
        ({"labels": torch.zeros(1200, 3), "multi_label": True}, "1,200 pictures, each with any number of 3 classes"),
        ({"labels": [0, 0, 2] * 400}, "1,200 pictures of 3 classes: 0 800, 1 0, 2 400"),
        ({"labels": [0, 0, 2] * 400, "class_names": "abc"}, "1,200 pictures of 3 classes: a 800, b 0, c 400"),
        ({"classes": 1}, "1,200 pictures of 1 class"),
    ],
)
def test_a_users_dataset_says_what_it_knows(more: dict[str, Any], text: str) -> None:
    whole: Any = Users(**more)
    assert lines(Splits(whole, whole, None, None)) == [f"{text}; validation: none; test: none"]


def test_loaders_say_what_they_know() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(7)))
    stream = torch.utils.data.DataLoader(Stream())
    assert describe_found(count_in_loaders("Mine", 10, {"train": loader, "val": stream, "test": None}, 1)) == [
        "7 samples of Mine of 10 classes; validation: unknown; test: none"
    ]
    assert describe_found(count_in_loaders("Mine", None, {"train": stream, "val": None, "test": [1]}, 1)) == [
        "an unknown number of samples of Mine; validation: none; test: unknown"
    ]
