"""Evaluation of a run on data other than its own: what both must share, and the run's own normalization."""

from collections.abc import Callable
from typing import Any

from ..base.errors import CannotStart, Problem, shorten_value
from ..base.log import log
from ..config.faults import build_checked
from ..config.locate import locate
from ..config.schema import DatasetConfig
from ..core import declarations
from ..core.protocols import Dataset
from .splits import Splits


def splits_of_other(settings: DatasetConfig) -> Splits:
    """Val and test images of a dataset; all of its images where it has neither: nothing of it was trained on."""
    read = Splits.of(settings.model_copy(update={"val_fraction": 0.0}))
    return read if read.val or read.test else Splits(read.whole, read.train, None, read.whole)


def as_trained(own: DatasetConfig, other: Dataset) -> Any:
    """What says mean and standard deviation of the images that the network was trained on.

    Raises:
        CannotStart: the network was trained on other classes, or on images of another shape.
    """
    try:
        trained: Any = build_checked("dataset", own, split="train")
    except (CannotStart, ValueError, OSError) as error:
        trained = locate(own.target)
        if declarations.of_dataset(trained).mean is None:
            text = f"the run's own data, by which images are normalized, cannot be opened: {error}"
            raise CannotStart(Problem("dataset", text)) from error
        log.warning("the run's own data cannot be opened, so class names are not compared: %s", error)
        return trained
    _compare(trained, other)
    return trained


_SHARED: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("image_shape", lambda shape: f"images of the shape {' x '.join(map(str, shape))}"),
    ("class_names", lambda names: f"the classes {shorten_value(list(names), 200)}"),
    ("classes", lambda count: f"{count} classes"),
)
"""What both datasets must have in common, where both say it, and how it is shown."""


def _compare(trained: Any, other: Any) -> None:
    for name, shown in _SHARED:
        own, its = (getattr(each, name, None) for each in (trained, other))
        if own is None or its is None or (own == its if name == "classes" else list(own) == list(its)):
            continue
        text = f"the network was trained on {shown(own)}, and this dataset has {shown(its)}"
        remedy = f"dataset.image_size={own[-1]}" if name == "image_shape" else ""
        raise CannotStart(Problem("dataset", text, remedy=remedy))
