"""Metrics of an evaluation by name: `task.metrics`, objects of torchmetrics."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torchmetrics.classification as found
from torch import Tensor, nn
from torchmetrics import Metric

from ...base.errors import join_names, nearest

Wanted = Sequence[str | Mapping[str, Any]]
"""Names, or names with arguments of their class in torchmetrics."""

_CLASSES = {
    "f1": "F1Score",
    "precision": "Precision",
    "recall": "Recall",
    "auroc": "AUROC",
    "average_precision": "AveragePrecision",
    "calibration_error": "CalibrationError",
}
_OF_ONE_CLASS = ("calibration_error",)
"""Metrics that exist for images of one class alone."""
_PER_CLASS = "_per_class"
_TOP = re.compile(r"top(\d+)")


def names_of(wanted: Wanted) -> dict[str, dict[str, Any]]:
    """Arguments of the metrics by name.

    Raises:
        ValueError: it holds something else.
    """
    pairs: list[tuple[Any, Any]] = []
    for item in wanted:
        pairs += item.items() if isinstance(item, Mapping) else [(item, None)]
    for name, given in pairs:
        if not isinstance(name, str) or not isinstance(given, Mapping | None):
            raise ValueError(f"metrics={wanted} must hold names, such as [f1,{{auroc: {{thresholds: 200}}}}]")
    return {name: dict(given or {}) for name, given in pairs}


def names_logged_by(wanted: Any) -> list[str]:
    """Names that these metrics log, for val and test; of a metric per class, what they begin with."""
    try:
        names = names_of(wanted or [])
    except (ValueError, TypeError):
        return []  # the task's constructor refuses it
    return [f"{split}/{name}" for split in ("val", "test") for name in names]


class EvaluationMetrics(nn.Module):
    """The metrics of each split, over all samples of all workers at once.

    Names: f1, precision, recall, auroc, average_precision (means over the classes), each also with `_per_class`, logged
    as NAME_0, NAME_1, ...; topK, such as top3, and calibration_error (15 bins, l1) where an image has one class.

    Args:
        wanted: names and arguments.
        classes: number of classes.
        multi_label: whether an image has any number of classes.

    Raises:
        ValueError: an unknown name, or an argument that its class does not take.
    """

    def __init__(self, wanted: Wanted, classes: int, multi_label: bool = False):
        super().__init__()
        self._multi_label = multi_label
        names = names_of(wanted)
        for split in ("val", "test"):
            made = {name: _build_metric(name, given, classes, multi_label) for name, given in names.items()}
            self.add_module(split, nn.ModuleDict(made))

    def update(self, split: str, scores: Tensor, labels: Tensor) -> Iterator[tuple[str, Metric]]:
        """Take in scores (batch, classes) and labels (batch,), or (batch, classes) of several; gives what to log."""
        metrics = self.get_submodule(split)
        assert isinstance(metrics, nn.ModuleDict)
        if not len(metrics):
            return
        scores = scores.detach().float()
        # torchmetrics would take each batch for probabilities or not by its values
        probabilities = scores.sigmoid() if self._multi_label else scores.softmax(1)
        targets = labels.gt(0.5).long() if self._multi_label else labels if labels.ndim == 1 else labels.argmax(1)
        for name, metric in metrics.items():
            assert isinstance(metric, Metric)
            metric.update(probabilities, targets)
            yield f"{split}/{name}", metric


def _build_metric(name: str, given: Mapping[str, Any], classes: int, multi_label: bool) -> Metric:
    top, per_class = _TOP.fullmatch(name), name.endswith(_PER_CLASS)
    plain = "top" if top else name.removesuffix(_PER_CLASS)
    known = [each for each in _CLASSES if not (multi_label and each in _OF_ONE_CLASS)]
    if (plain not in known and not (top and not multi_label)) or (per_class and plain in _OF_ONE_CLASS):
        every = [*known, *(f"{each}{_PER_CLASS}" for each in known if each not in _OF_ONE_CLASS)]
        close = nearest(name, every)
        meant = f"; did you mean {close}?" if close else "."
        raise ValueError(
            f"metrics={name} is unknown{meant} There are {join_names([*every, *([] if multi_label else ['top3'])])}"
        )
    arguments: dict[str, Any] = {"num_labels" if multi_label else "num_classes": classes}
    if top:
        if not 1 <= int(top[1]) <= classes:
            raise ValueError(f"metrics={name} counts among more scores than the {classes} classes")
        arguments.update(top_k=int(top[1]), average="micro")
    elif plain not in _OF_ONE_CLASS:
        arguments["average"] = "none" if per_class else "macro"
    constructor = getattr(
        found, ("Multilabel" if multi_label else "Multiclass") + ("Accuracy" if top else _CLASSES[plain])
    )
    taken = inspect.signature(constructor).parameters
    unknown = [each for each in given if each not in taken]
    if unknown:
        options = [each for each in taken if each not in ("kwargs", "num_classes", "num_labels")]
        raise ValueError(
            f"metrics={name}: {constructor.__name__} takes no {unknown[0]!r}; it takes {join_names(options)}"
        )
    try:
        metric = constructor(**{**arguments, **given})
    except (ValueError, TypeError) as error:
        raise ValueError(f"metrics={name}: {error}") from error
    metric.logs_each_class = per_class
    return metric
