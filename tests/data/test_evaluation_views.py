"""leyden eval --crops --scales: several views of each image from one decoding, and the mean of their softmax."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import Freeze, Processes, weights
from shard_examples import jpeg

from leyden.datasets.decode import decode
from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.cli.main import main


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for split, count in (("train", 8), ("val", 7), ("test", 3)):
        for number in range(count):
            path = folder / split / ("a", "b", "c")[number % 3] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, 30 + number, 44))
    return folder


def by_pillow(data: bytes, scale: int, crop: int) -> list[np.ndarray]:
    """TenCrop of torchvision, by its documentation, of Pillow's antialiased resize."""
    whole = Image.fromarray(decode(data, "x"))
    short = min(whole.size)
    whole = whole.resize(
        (int(scale * whole.width / short), int(scale * whole.height / short)), Image.Resampling.BILINEAR
    )
    right, bottom = whole.width - crop, whole.height - crop
    corners = [(0, 0), (right, 0), (0, bottom), (right, bottom), (round(right / 2), round(bottom / 2))]
    five = [np.asarray(whole)[top : top + crop, left : left + crop].astype(int) for left, top in corners]
    return [*five, *(view[:, ::-1] for view in five)]


@pytest.mark.parametrize("crops", [1, 5, 10])
def test_views_are_the_crops_of_pillow(root: Path, crops: int) -> None:
    data = ImageFolder("val", root, 16, resize=20, crop=18)
    for index in range(3):
        for scales in ((), (24, 31)):
            views, label = data.evaluation_views(index, crops, scales)
            assert label == data[index][1]
            wanted = [by_pillow(Path(data.name(index)).read_bytes(), scale, 18) for scale in scales or (20,)]
            expected = np.concatenate([ten[4:5] if crops == 1 else ten[:crops] for ten in wanted])
            assert views.shape == (crops * max(1, len(scales)), 3, 18, 18)
            assert np.abs(views.permute(0, 2, 3, 1).numpy() - expected).max() <= 2
        assert torch.equal(data.evaluation_views(index, 1, ())[0][0], data.evaluation_sample(index)[0])


def trained(freeze: Freeze, processes: Processes, root: Path, *more: str) -> Path:
    run_dir = freeze(
        "run", "dataset=image_folder", f"dataset.root={root}", "dataset.image_size=16", "dataset.resize=20",
        "batch_size=4", "model=mlp", "model.hidden=[4]", "trainer.max_steps=2",
        "trainer.enable_progress_bar=false", *more,
    )  # fmt: skip
    code, output = processes.run(run_dir)
    assert code == 0, output
    return run_dir


def expected_metrics(run_dir: Path, root: Path, split: str, crops: int, scales: tuple[int, ...]) -> tuple[float, float]:
    """Loss and accuracy of the mean of the softmax, in float64, image by image."""
    data, layers = ImageFolder(split, root, 16, resize=20), [value.double() for value in weights(run_dir).values()]
    mean, std = (torch.tensor(values).double().view(1, 3, 1, 1) for values in (data.mean, data.std))
    losses, hits = [], []
    for index in range(len(data)):
        views, label = data.evaluation_views(index, crops, scales)
        hidden = ((views / 255.0 - mean) / std).flatten(1) @ layers[0].T + layers[1]
        mixed = (hidden.relu() @ layers[2].T + layers[3]).softmax(1).mean(0)
        losses.append(-mixed[label].log())
        hits.append(mixed.argmax() == label)
    return float(torch.stack(losses).mean()), float(torch.stack(hits).double().mean())


def logged(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"((?:val|test)/\w+) +([\d.e-]+)", text)}


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["augment=none", "dataset.cache=memory", "dataset.threads=0"],
                                  ["strategy=ddp", "topology.devices_per_node=2"]])  # fmt: skip
def test_metrics_are_those_of_the_mean_of_the_softmax(
    freeze: Freeze, processes: Processes, root: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """One batch has fewer images than there are workers: a dummy batch has all views, too."""
    run_dir = trained(freeze, processes, root, *more)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file() and path.name != "run.log"}
    for flags, crops, scales in (
        (["--crops", "10", "--scales", "17,24"], 10, (17, 24)),
        (["--scales", "16,22"], 1, (16, 22)),
    )[: 1 if more else 2]:
        capfd.readouterr()
        assert main(["eval", *flags, str(run_dir)]) == 0
        found = logged("".join(capfd.readouterr()))
        for split in ("val", "test"):
            loss, accuracy = expected_metrics(run_dir, root, split, crops, scales)
            assert found[f"{split}/loss"] == pytest.approx(loss, rel=1e-4)
            assert found[f"{split}/acc"] == pytest.approx(accuracy, rel=1e-4)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.slow
def test_wrong_views_are_named(freeze: Freeze, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", "dataset=image_folder", f"dataset.root={root}", "dataset.image_size=16", "model=mlp")
    digits = freeze("digits", "model=mlp")
    names = [str(path.relative_to(root)) for path in root.rglob("*.jpg")]
    (root.parent / "labels.csv").write_text("image,labels\n" + "".join(f"{name},x;y\n" for name in names))
    several = freeze("several", "dataset=image_folder", f"dataset.root={root}", "dataset.image_size=16", "model=mlp",
                     f"dataset.labels={root.parent / 'labels.csv'}")  # fmt: skip
    for flags, run, text in (
        (["--scales", "big"], run_dir, "--scales = big\n.*pixels of the shorter side"),
        (["--crops", "5"], digits, "--crops = 5\n.*needs a dataset that cuts crops"),
        (["--crops", "5"], several, "average a softmax, and these images have several labels"),
        (["--scales", "20,15"], run_dir, "15 is smaller than the crop of 16 pixels"),
    ):
        assert main(["eval", *flags, str(run)]) == 2
        assert re.search(text, capsys.readouterr().err, re.DOTALL), text
