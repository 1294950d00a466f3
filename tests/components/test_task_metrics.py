"""task.metrics: the values of scikit-learn, on one worker and on two, as a checkpoint's monitor; names are checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool import Pool
from runs import TINY, Freeze, metrics
from sklearn import metrics as sklearn_metrics
from torch import Tensor, nn

from leyden.trainer.cli.main import main
from leyden.trainer.components.tasks.metrics import EvaluationMetrics
from leyden.trainer.entrypoints.start import start

reference: Any = sklearn_metrics  # its stubs take less than it does
Pools = Callable[[int], Pool]
EVERY = ["f1", "precision", "recall", "auroc", "average_precision", "top3", "f1_per_class", "recall_per_class"]


def values(
    wanted: Any, classes: int, batches: list[tuple[Tensor, Tensor]], multi_label: bool = False
) -> dict[str, Any]:
    made = EvaluationMetrics(wanted, classes, multi_label)
    logged: dict[str, Any] = {}
    for scores, labels in batches:
        logged.update(made.update("val", scores, labels))
    return {name.removeprefix("val/"): metric.compute().numpy() for name, metric in logged.items()}


def test_the_values_are_those_of_sklearn() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(300, 5) * 2, torch.randint(0, 5, (300,))
    got = values(
        [*EVERY, {"f1": {"average": "micro"}}], 5, [(scores[:200], labels[:200]), (scores[200:], labels[200:])]
    )
    predicted, probabilities = scores.argmax(1), scores.softmax(1).numpy()
    one_hot = np.eye(5)[labels]
    macro = {"average": "macro"}
    expected = {
        "f1": reference.f1_score(labels, predicted, average="micro"),
        "precision": reference.precision_score(labels, predicted, **macro),
        "recall": reference.recall_score(labels, predicted, **macro),
        "auroc": reference.roc_auc_score(labels, probabilities, multi_class="ovr", **macro),
        "average_precision": reference.average_precision_score(one_hot, probabilities, **macro),
        "top3": reference.top_k_accuracy_score(labels, probabilities, k=3),
        "f1_per_class": reference.f1_score(labels, predicted, average=None),
        "recall_per_class": reference.recall_score(labels, predicted, average=None),
    }
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-5), name


def test_the_calibration_error_of_its_definition() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(400, 4) * 2, torch.randint(0, 4, (400,))
    confidence, predicted = scores.softmax(1).max(1)
    bins = (confidence * 15).ceil().long() - 1
    gaps = [
        (bins == b).float().mean()
        * ((predicted == labels)[bins == b].float().mean() - confidence[bins == b].mean()).abs()
        for b in range(15)
        if (bins == b).any()
    ]
    assert values(["calibration_error"], 4, [(scores, labels)])["calibration_error"] == pytest.approx(
        float(sum(gaps)), abs=1e-5
    )


def test_of_several_labels() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(200, 4), (torch.rand(200, 4) < 0.4).float()
    got = values(["f1", "auroc", "average_precision_per_class"], 4, [(scores, targets)], multi_label=True)
    assert got["f1"] == pytest.approx(reference.f1_score(targets, scores > 0, average="macro"), abs=1e-5)
    assert got["auroc"] == pytest.approx(reference.roc_auc_score(targets, scores, average="macro"), abs=1e-5)
    each = reference.average_precision_score(targets, scores, average=None)
    assert got["average_precision_per_class"] == pytest.approx(each, abs=1e-5)


METRICS = "task.metrics=[f1,auroc,average_precision,calibration_error,recall_per_class]"


def test_they_are_logged_and_rank_checkpoints(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, METRICS, "callbacks.checkpoint.monitor=val/f1", "callbacks.checkpoint.keep_last=1")
    assert start(run_dir) == 0
    logged = metrics(run_dir)
    assert {f"{split}/recall_per_class_{c}" for split in ("val", "test") for c in range(10)} <= logged.keys()
    assert 0 < logged["val/auroc"] < 1
    mean = np.mean([logged[f"val/recall_per_class_{c}"] for c in range(10)])
    assert 0 < mean < 1
    best = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]["checkpoint"]["best"]
    assert best[0][0] >= logged["val/f1"] - 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchmetrics' of classes that one sample does not have
@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        (METRICS, []),
        (METRICS, ["dataset.val_fraction=0.0007"]),
    ],
    ids=["all", "one sample for two workers"],
)
def test_two_workers_log_what_one_does(freeze: Freeze, pools: Pools, wanted: str, more: list[str]) -> None:
    options = [*TINY, wanted, *more, "batch_size=48", "trainer.precision=64-true", "trainer.max_steps=4"]
    one, two = freeze("one", *options), freeze("two", *options, "strategy=ddp", "topology.devices_per_node=2")
    assert start(one) == 0
    pools(2).run(two)
    for name, value in metrics(one).items():
        if name.startswith(("val/", "test/")):
            assert metrics(two)[name] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["task.metrics=[f11]"], "f11 is unknown; did you mean f1?"),
        (["task.metrics=[top99]"], "counts among more scores than the 10 classes"),
        (["task.metrics=[{f1: {averaging: micro}}]"], "MulticlassF1Score takes no 'averaging'"),
        (["task.metrics=[{f1: {average: most}}]"], "average"),
        (["task.metrics=[{f1: 3}]"], "must hold names"),
        (["task=multi_label", "task.metrics=[calibration_error]"], "calibration_error is unknown"),
        (["task.metrics=[f1]", "callbacks.checkpoint.monitor=val/auroc"], "is not logged"),
        (["task.metrics=5"], "task.metrics"),
    ],
)
def test_mistakes_are_named_before_the_start(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=mlp", *words]) == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_a_monitor_that_the_metrics_log_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import leyden

    monkeypatch.chdir(tmp_path)
    for monitor in ("val/f1", "val/recall_per_class_3"):
        leyden.compose("model=mlp", "task.metrics=[f1,recall_per_class]", f"callbacks.checkpoint.monitor={monitor}")


def test_they_are_no_part_of_the_weights() -> None:
    made: nn.Module = EvaluationMetrics(["auroc", {"average_precision": {"thresholds": 5}}], 3)
    assert not made.state_dict()
