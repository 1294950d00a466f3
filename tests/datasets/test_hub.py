"""dataset=hub: files that the package datasets has written, read offline, decoded by our decoder."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from shard_examples import jpeg, png

from leyden.datasets.hub import HubImages
from leyden.datasets.limits import Limits

datasets: Any = pytest.importorskip("datasets")
FILES = [jpeg(1, 30, 40), png(2, 24, 31), jpeg(3, 50, 20), jpeg(4, 30, 30)]
LABELS = [2, 0, 1, 2]
NAMES = ["cat", "dog", "bird"]


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Nothing is fetched, and what the package keeps is removed with the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def table(labels: list[Any], label: Any, files: list[bytes] = FILES, column: str = "label") -> Any:
    features = datasets.Features({"image": datasets.Image(), column: label, "text": datasets.Value("string")})
    images = [{"bytes": data, "path": None} for data in files]
    return datasets.Dataset.from_dict({"image": images, column: labels, "text": ["x"] * len(files)}, features=features)


def as_parquet(folder: Path, **splits: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, each in splits.items():
        each.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


def as_arrow(folder: Path, **splits: Any) -> Path:
    datasets.DatasetDict(splits).save_to_disk(folder)
    return folder


@pytest.mark.parametrize("write", [as_parquet, as_arrow])
def test_samples_are_the_files_that_were_written(tmp_path: Path, write: Any) -> None:
    classes = datasets.ClassLabel(names=NAMES)
    root = write(tmp_path / "data", train=table(LABELS, classes), validation=table([1], classes, FILES[:1]),
                 test=table([-1], classes, FILES[:1]))  # fmt: skip
    data, val = (HubImages(split, str(root), 16) for split in ("train", "val"))
    assert data.splits == ("train", "val"), "images without classes are no split"
    assert data.left_out == {"split test without classes": 1}
    assert (data.classes, data.class_names) == (3, tuple(NAMES))
    assert [data.original(n) for n in range(len(data))] == list(zip(FILES, LABELS, strict=True))
    assert val.original(0) == (FILES[0], 1)
    image, label = data[1]
    assert (image.shape, label) == ((3, 16, 16), 0)
    with pytest.raises(ValueError, match="no split 'test' with classes, only train, val"):
        HubImages("test", str(root))


def test_splits_that_are_not_read_are_counted(tmp_path: Path) -> None:
    train = table(LABELS, datasets.ClassLabel(names=NAMES))
    assert HubImages("train", str(as_arrow(tmp_path / "data", train=train, extra=train)), 16).left_out == {
        "split extra": 4
    }


def read(data: HubImages) -> list[torch.Tensor]:
    return [data[n][0] for n in range(len(data))]


def test_threads_and_processes_read_the_same(tmp_path: Path) -> None:
    data = HubImages("train", str(as_parquet(tmp_path / "data", train=table(LABELS, datasets.Value("int64")))), 16)
    expected = read(data)
    assert data.class_names is None
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: read(data), range(8)):
            assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, read(pickle.loads(pickle.dumps(data))), expected))
    with multiprocessing.get_context("fork").Pool(1) as processes:
        assert all(map(torch.equal, processes.apply(read, (data,)), expected))


@pytest.mark.parametrize(("labels", "feature", "column", "targets"), [
    ([["dog", "cat"], [], ["dog"], ["cat"]], "string", "labels", [[1, 1], [0, 0], [0, 1], [1, 0]]),
    ([[0, 2], [1], [2], []], "int64", "label", [[1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]),
])  # fmt: skip
def test_lists_of_classes_are_vectors(
    tmp_path: Path, labels: Any, feature: str, column: str, targets: list[list[int]]
) -> None:
    whole = table(labels, datasets.Sequence(datasets.Value(feature)), column=column)
    data = HubImages("train", str(as_parquet(tmp_path / "data", train=whole)), 16)
    assert data.multi_label
    assert [data[n][1].tolist() for n in range(4)] == targets  # pyright: ignore[reportAttributeAccessIssue]


def test_names_are_numbered_in_their_order(tmp_path: Path) -> None:
    root = as_parquet(tmp_path / "data", train=table(["dog", "cat", "dog", "ant"], datasets.Value("string")))
    data = HubImages("train", str(root), 16, label="label")
    assert data.class_names == ("ant", "cat", "dog")
    assert [data[n][1] for n in range(4)] == [2, 1, 2, 0]


@pytest.mark.parametrize(("options", "text"), [
    ({"label": "kind"}, "no column 'kind', only image, label, text"),
    ({"label": "image"}, "must hold classes from 0 on"),
    ({"split": "val"}, "no split 'val' with classes, only train"),
])  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    root = as_parquet(tmp_path / "data", train=table(LABELS, datasets.Value("int64")))
    with pytest.raises(ValueError, match=text):
        HubImages(**{"split": "train", "source": str(root), **options})


def test_a_bad_image_is_a_bad_sample(tmp_path: Path) -> None:
    files = [b"no image", FILES[0]]
    root = as_parquet(tmp_path / "data", train=table([0, 1], datasets.Value("int64"), files))
    data = HubImages("train", str(root), 16, limits=Limits(file_bytes=100))
    with pytest.raises(ValueError, match="row 0: not a JPEG"):
        data[0]
    with pytest.raises(ValueError, match=r"row 1: .* more than dataset.limits.file_bytes=100"):
        data[1]
