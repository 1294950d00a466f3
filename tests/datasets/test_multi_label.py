"""Images with any number of classes: targets are vectors, from a CSV file or from shards, up to the task's batch."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Freeze, metrics
from shard_examples import jpeg, silent

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData

LABELS = {
    "train/1.jpg": "cat;dog",
    "train/2.jpg": "",
    "train/more/3.jpg": "traffic light",
    "train/4.jpg": "dog ; cat",
    "train/5.jpg": "traffic light;cat;dog",
    "val/1.jpg": "dog",
}
NAMES = ("cat", "dog", "traffic light")
VECTORS = {
    "train/1.jpg": [1, 1, 0], "train/2.jpg": [0, 0, 0], "train/more/3.jpg": [0, 0, 1], "train/4.jpg": [1, 1, 0],
    "train/5.jpg": [1, 1, 1], "val/1.jpg": [0, 1, 0],
}  # fmt: skip


def text(labels: dict[str, str]) -> str:
    return "image,labels\n" + "".join(f'{name},"{value}"\n' for name, value in labels.items())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(LABELS):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 20 + number, 24))
    (tmp_path / "labels.csv").write_text(text(LABELS))
    return tmp_path / "images"


def folder(root: Path, split: str = "train") -> ImageFolder:
    return ImageFolder(split, root, 16, labels=root.parent / "labels.csv")


def targets(data: Any) -> list[list[float]]:
    return [data[n][1].tolist() for n in range(len(data))]


def test_a_target_has_a_one_for_each_label(root: Path) -> None:
    train, val = folder(root), folder(root, "val")
    assert train.class_names == val.class_names == NAMES
    assert (train.classes, train.multi_label, train.splits) == (3, True, ("train", "val"))
    for data in (train, val):
        for index in range(len(data)):
            image, target = data[index]
            assert isinstance(target, torch.Tensor)
            assert target.dtype == torch.float32
            assert target.tolist() == VECTORS[str(Path(data.name(index)).relative_to(root))]
            assert torch.equal(data.crops(index, lambda h, w: [(0, 0, w, h)], (8, 8))[1], target)  # pyright: ignore
            assert torch.equal(data.evaluation_sample(index)[1], target)  # pyright: ignore
            assert image.shape == (3, 16, 16)


@pytest.mark.parametrize(("labels", "message"), [
    ("path,labels\n", "must begin with the line image,labels"),
    ("image,labels\ntrain/1.jpg,cat,dog\n", r"line 2: 3 cells"),
    ("image,labels\ntrain/1.jpg,cat\ntrain/1.jpg,dog\n", r"line 3: train/1.jpg is listed twice"),
    ("image,labels\ntrain/1.jpg,cat;cat\n", r"line 2: train/1.jpg has the same label twice"),
    ("image,labels\ntrain/1.jpg,\n", "names no labels"),
    ("image,labels\ntrain/1.jpg,\"cat\n", r"line 2"),
    (text({**LABELS, "train/9.jpg": "cat"}), r"do not exist, .*: train/9.jpg$"),
    (text({name: value for name, value in LABELS.items() if "val" not in name}), r"has no line.* for val/1.jpg$"),
])  # fmt: skip
def test_a_wrong_file_is_named(root: Path, labels: str, message: str) -> None:
    (root.parent / "labels.csv").write_text(labels)
    with pytest.raises(ValueError, match=message):
        folder(root)


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_shards_keep_the_labels(root: Path, tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "shards"
    sources: Any = {split: folder(root, split) for split in ("train", "val")}
    assert Preparation(out, sources, format=kind, shard_size=2, threads=1).run(silent) == 0
    for split, source in sources.items():
        data = Shards(split, out, 16)
        assert targets(data) == targets(source)
        assert (data.classes, data.class_names, data.multi_label) == (3, NAMES, True)
    if kind == "jpeg":
        with tarfile.open(out / "train-000000.tar") as archive:
            assert json.loads(archive.extractfile("000000000.json").read()) == {"labels": ["cat", "dog"]}  # pyright: ignore
        (out / "index.json").unlink()  # as the shards of others, which are indexed in place
        others = Shards("train", out, 16, json_label="labels")
        assert targets(others) == targets(sources["train"])
        assert others.class_names == NAMES
    else:
        index = json.loads((out / "index.json").read_text())
        index["label_sets"][0] = [3]
        (out / "index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="label_sets have a class above 2"):
            Shards("train", out, 16)


def test_one_class_here_and_a_list_there_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, label in enumerate((["cat"], "cat")):
            for name, data in (
                (f"{number}.jpg", jpeg(1, 9, 9)),
                (f"{number}.json", json.dumps({"label": label}).encode()),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    with pytest.raises(ValueError, match="some a list of classes"):
        Shards("train", tmp_path)


class Vectors:
    """Float targets of a class of one's own, without sets of labels."""

    classes, image_shape, splits, multi_label = 2, (3, 8, 8), ("train",), True

    def __init__(self, split: str = "train") -> None: ...

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(3, 8, 8, dtype=torch.uint8), torch.tensor([1.0, float(index)])


def test_shards_refuse_targets_that_they_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only of a dataset that has `label_sets`"):
        Preparation(tmp_path / "out", {"train": Vectors()}).check()


@pytest.mark.parametrize("more", [["augment=imagenet"], ["augment=imagenet", "augment.crop.views=2"], [],
                                  ["augment=none", "dataset.cache=memory"], ["augment=mixup"]])  # fmt: skip
def test_batches_have_the_targets_of_their_samples(freeze: Freeze, root: Path, more: list[str]) -> None:
    config = load(freeze("run", "dataset=image_folder", f"dataset.root={root}", "dataset.image_size=16", "batch_size=4",
                         f"dataset.labels={root.parent / 'labels.csv'}", *more))  # fmt: skip
    data, views = ImageData(config, (0, 1), dummy_batches=True), 2 if "augment.crop.views=2" in more else 1
    assert data.multi_label
    assert data.classes == 3
    expected = torch.tensor(targets(folder(root)))
    for batch, part in zip(data.order.batches(0), data.train_parts(0), strict=True):
        labels = part.batch[1]
        assert torch.equal(labels, expected[batch].repeat_interleave(views, 0))
        images, mixed = data.on_after_batch_transfer(part.batch, 0)
        assert mixed.shape == (len(batch) * views, 3)
        assert images.shape[1:] == (3, 16, 16)
    (val, size), = data.evaluation_batches("val")  # fmt: skip
    assert size == 1
    assert val[1].tolist() == [VECTORS["val/1.jpg"]]
    other = ImageData(config, (1, 2), dummy_batches=True)  # a worker without a sample
    (dummy, size), = other.evaluation_batches("val")  # fmt: skip
    assert (size, dummy[1].dtype, dummy[1].shape) == (0, torch.float32, (1, 3))


def test_the_task_fits_the_targets(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["dataset=image_folder", f"dataset.root={root}", "dataset.image_size=8", "batch_size=5"]
    words = [*data, "model=mlp", "model.hidden=[4]", "trainer.max_epochs=1", "topology=cpu", "hydra.run.dir=run",
             "trainer.enable_progress_bar=false", "callbacks=none"]  # fmt: skip
    labels = f"dataset.labels={root.parent / 'labels.csv'}"
    assert main([*words, labels]) == 2
    assert "task=multi_label" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert main([*words, labels, "task=multi_label"]) == 0
    assert 0 <= metrics(tmp_path / "run")["val/exact"] <= 1
