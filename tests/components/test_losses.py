"""Losses of class scores against torch's and the papers' formulas; the task of several labels."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from label_examples import Halves
from runs import HERE, TINY, Freeze, metrics
from torch import Tensor

from leyden.trainer.api.run import Run
from leyden.trainer.components.tasks.classification import Classification
from leyden.trainer.components.tasks.losses import ClassificationLoss
from leyden.trainer.components.tasks.multi_label import MultiLabel
from leyden.trainer.core.task_contract import class_probabilities
from leyden.trainer.entrypoints.start import start

TORCH = torch.Generator().manual_seed(0)
SCORES = torch.randn(6, 4, dtype=torch.float64, generator=TORCH)
LABELS = torch.tensor([0, 3, 1, 1, 2, 0])
SOFT = F.normalize(torch.rand(6, 4, dtype=torch.float64, generator=TORCH), p=1.0)
W = [0.5, 1.0, 2.0, 3.0]


def smoothed(labels: Tensor, part: float) -> Tensor:
    target = torch.zeros(6, 4, dtype=torch.float64)
    for row, label in enumerate(labels.tolist()):
        target[row, label] = 1.0
    return target * (1 - part) + part / 4


def by_formula(kind: str, target: Tensor, w: list[float], gamma: float = 2.0) -> float:
    total = 0.0
    for scores, row in zip(SCORES, target, strict=True):
        p = scores.exp() / scores.exp().sum()
        s = 1 / (1 + (-scores).exp())
        for c in range(4):
            term = {
                "cross_entropy": -row[c] * p[c].log(),
                "bce": -(row[c] * s[c].log() + (1 - row[c]) * (1 - s[c]).log()) / 4,
                "focal": -row[c] * (1 - p[c]) ** gamma * p[c].log(),
                "binary_focal": -(
                    row[c] * (1 - s[c]) ** gamma * s[c].log() + (1 - row[c]) * s[c] ** gamma * (1 - s[c]).log()
                )
                / 4,
            }[kind]
            total += w[c] * float(term)
    return total / 6


@pytest.mark.parametrize("kind", ["cross_entropy", "bce", "focal", "binary_focal"])
@pytest.mark.parametrize("given", [None, W], ids=["", "weights"])
def test_formulas(kind: Any, given: list[float] | None) -> None:
    loss, w = ClassificationLoss(4, kind, 0.1, given), given or [1.0] * 4
    assert float(loss(SCORES, LABELS)) == pytest.approx(by_formula(kind, smoothed(LABELS, 0.1), w))
    assert float(loss(SCORES, LABELS, label_smoothing=0.0)) == pytest.approx(by_formula(kind, smoothed(LABELS, 0), w))
    soft = SOFT * 0.9 + 0.1 / 4
    assert float(loss(SCORES, SOFT)) == pytest.approx(by_formula(kind, soft, w))


def test_a_divided_batch_has_the_loss_of_the_whole() -> None:
    loss = ClassificationLoss(4, class_weights=W)
    halves = [loss(SCORES[part], LABELS[part]) for part in (slice(0, 3), slice(3, 6))]
    assert float(sum(halves)) / 2 == pytest.approx(float(loss(SCORES, LABELS)))


def test_focal_without_exponent_is_cross_entropy_and_gradients_are_finite() -> None:
    focal = ClassificationLoss(4, "focal", focal_gamma=0.0)
    assert float(focal(SCORES, LABELS)) == pytest.approx(float(F.cross_entropy(SCORES, LABELS)))
    binary, bce = ClassificationLoss(4, "binary_focal", focal_gamma=0.0), ClassificationLoss(4, "bce")
    assert float(binary(SCORES, SOFT)) == pytest.approx(float(bce(SCORES, SOFT)))
    for kind in ("focal", "binary_focal"):
        sure = (SCORES * 1000).requires_grad_()
        ClassificationLoss(4, kind, focal_gamma=0.5)(sure, LABELS).backward()
        assert sure.grad is not None
        assert torch.isfinite(sure.grad).all()


def test_above_the_threshold_a_mixed_image_is_of_both_classes() -> None:
    mixed = torch.tensor([[0.75, 0.25, 0, 0], [0, 0.9, 0.1, 0]] * 3, dtype=torch.float64)
    both = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0]] * 3, dtype=torch.float64)
    loss = ClassificationLoss(4, "bce", 0.1, target_threshold=0.2)
    assert float(loss(SCORES, mixed)) == pytest.approx(by_formula("bce", both * 0.9 + 0.1 / 4, [1.0] * 4))
    assert float(loss(SCORES, LABELS)) == float(ClassificationLoss(4, "bce", 0.1)(SCORES, LABELS))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["task.class_weights=[1.0,2.0]"], "class_weights"),
        (["task.label_smoothing=1.5"], "label_smoothing=1.5: must be at least 0 and at most 1"),
        (["task.loss=focal", "task.label_smoothing=-0.1"], "label_smoothing=-0.1: must be"),
        (["task.target_threshold=0.2"], "target_threshold=0.2: .* with loss=bce"),
        (["task.loss=bce", "task.target_threshold=1.0"], "target_threshold=1.0: must be"),
        (["task.loss=focal", "task.focal_gamma=-1"], "focal_gamma"),
    ],
)
def test_what_does_not_fit_the_dataset(freeze: Freeze, options: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        start(freeze("run", *TINY, *options))


def test_a_network_learns_by_focal_loss(freeze: Freeze) -> None:
    weighted = f"task.class_weights=[{','.join(['2.0'] * 10)}]"
    run_dir = freeze("run", *TINY, "task.loss=focal", weighted, "augment=none", "optimizer=adam", "optimizer.lr=0.02")
    assert start(run_dir) == 0
    assert metrics(run_dir)["val/acc"] > 0.6


def test_several_labels(freeze: Freeze) -> None:
    run_dir = freeze(
        "run", "task=multi_label", "dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape",
        "dataset._target_=label_examples.Halves", HERE, "model=mlp",
        "model.hidden=[16]", "optimizer=adam", "optimizer.lr=0.05", "trainer.max_epochs=8",
    )  # fmt: skip
    assert start(run_dir) == 0
    found = metrics(run_dir)
    assert found["val/exact"] > 0.9
    assert found["test/acc"] > found["test/exact"] > 0.9
    tests = Halves("test")
    images, labels = zip(*map(tests.__getitem__, range(50)), strict=True)
    several = 0
    for each, bright in zip(Run(run_dir).predict(torch.stack(images), top=4), labels, strict=True):
        sure = {ranked.number for ranked in each.ranked if ranked.probability > 0.9}
        several += sure == {number for number, value in enumerate(bright) if value} and len(sure) != 1
    assert several > 25, "each class has a probability of its own"


def test_probabilities_of_several_labels_are_apart() -> None:
    scores = torch.tensor([[2.0, -1.0, 3.0]])
    assert torch.equal(class_probabilities(MultiLabel, scores), scores.sigmoid())
    assert torch.equal(class_probabilities(Classification(torch.nn.Identity(), 3), scores), scores.softmax(1))
    assert torch.equal(class_probabilities(object(), scores), scores.softmax(1))


def test_focal_of_several_labels() -> None:
    task = MultiLabel(torch.nn.Identity(), 4, class_weights=W, loss="focal", focal_gamma=1.5)
    targets = (SOFT > 0.25).to(SOFT.dtype)
    assert float(task.loss(SCORES, targets)) == pytest.approx(by_formula("binary_focal", targets, W, 1.5))
    with pytest.raises(ValueError, match="loss='cross_entropy' must be one of bce, focal"):
        MultiLabel(torch.nn.Identity(), 4, loss="cross_entropy")  # pyright: ignore[reportArgumentType]


def test_metrics_of_several_labels() -> None:
    task = MultiLabel(torch.nn.Identity(), 2)
    logged: dict[str, float] = {}
    vars(task)["log"] = lambda name, value, **_: logged.__setitem__(name, float(value))
    scores, targets = torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    task.validation_step((scores, targets), 0)
    assert (logged["val/acc"], logged["val/exact"]) == (0.75, 0.5)
    with pytest.raises(ValueError, match="task=multi_label needs targets"):
        task.validation_step((scores, torch.tensor([0, 1])), 0)
    assert logged["val/loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(scores, targets)))
