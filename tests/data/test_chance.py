"""The line at a run's end on an accuracy that is no better than chance."""

import re
from itertools import count

import pytest
from folders import ROOT
from runs import TINY, Freeze

from leyden.trainer.config.schema import load
from leyden.trainer.data.contents.chance import not_learned
from leyden.trainer.entrypoints.start import start


@pytest.mark.parametrize(
    ("val", "train", "counts", "text"),
    [
        (0.333, 0.92, [4, 4, 4], "is no better than the largest class alone, 0.333 of 12 samples"),
        (0.60, 0.92, [4, 4, 4], "is no better than the largest class alone"),  # 1/3 + 2 x 0.136
        (0.61, 0.92, [4, 4, 4], None),
        (0.61, 0.92, [400, 400, 400], None),
        (0.10, None, [400, 400, 400], "is no better"),
        (0.40, 0.92, [400, 400, 400], "is under half of train/acc, 0.920"),
        (0.47, 0.92, None, None),
        (0.45, 0.92, None, "is under half"),
        (0.45, None, None, None),
        (None, 0.92, [4, 4], None),
    ],
)
def test_what_is_no_better_than_chance(
    freeze: Freeze, val: float | None, train: float | None, counts: list[int] | None, text: str | None
) -> None:
    metrics = {name: value for name, value in (("val/acc", val), ("train/acc", train)) if value is not None}
    split = None if counts is None else {"samples": sum(counts), "classes": dict(enumerate(counts))}
    found = not_learned(metrics, {"splits": {"val": split}}, load(freeze("run", *TINY)))
    assert (text is None) == (found is None)
    assert (text or "") in (found or "")
    assert "pretrained" not in (found or ""), "this network has no weights"


def test_pretrained_weights_are_named_where_there_are_some(freeze: Freeze) -> None:
    found = {"splits": {"val": {"samples": 12, "classes": {"a": 6, "b": 6}}}}

    names = map(str, count())

    def helps(*words: str) -> str:
        return (not_learned({"val/acc": 0.5}, found, load(freeze(next(names), *words))) or "").partition("help: ")[2]

    photos = ("dataset=image_folder", "dataset.root=PHOTOS", "augment=imagenet")
    usual = "more trainer.max_epochs"
    assert helps(*photos, "model=efficientnet_lite0") == f"pretrained weights (model.pretrained=true), {usual}"
    assert helps(*photos, "model=resnet18") == f"pretrained weights (experiment=finetune_photos), {usual}"
    assert helps("model=lenet5", "augment=none") == f"an augmentation (augment=imagenet for photographs), {usual}"


_FIGURE = re.compile(r"`leyden experiment=(\w+)`.* (\d+\.\d) % of the test images")


def test_no_shipped_recipe_ends_with_it(freeze: Freeze) -> None:
    """By the accuracies in docs/figures.md and in the recipes, against a train/acc of 1."""
    text = (ROOT / "docs/figures.md").read_text()
    accuracies = {name: float(percent) for name, percent in _FIGURE.findall(text)}
    for path in (ROOT / "conf/experiment").glob("*.yaml"):
        percent = re.search(r"^# .*?(\d+(?:\.\d+)?) % of .*pictures \(measured", path.read_text(), re.MULTILINE)
        accuracies |= {} if percent is None else {path.stem: float(percent[1])}
    assert {"gpu_asgd8_small", "nyu_easgd_small", "deep_image_dp32_small", "finetune_photos"} <= set(accuracies)
    config, val = load(freeze("run", *TINY)), {"samples": 290, "classes": dict.fromkeys(range(10), 29)}
    for name, percent in accuracies.items():
        metrics = {"val/acc": percent / 100, "train/acc": 1.0}
        assert not_learned(metrics, {"splits": {"val": val}}, config) is None, name


def test_a_run_says_it(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "optimizer.lr=1e-9", "trainer.max_epochs=1")
    assert start(run_dir) == 0
    assert "val/acc" in next(line for line in (run_dir / "run.log").read_text().splitlines() if "may help" in line)
