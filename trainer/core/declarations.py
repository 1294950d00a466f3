"""What datasets, augmentations and data modules may declare beyond their protocols, which they need not inherit.

The one place where it is looked up by name: `of_dataset(dataset).multi_label` is the dataset's, or the default here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from .protocols import Box, Label

Defaults = TypeVar("Defaults")


class DatasetDeclarations:
    """Optional parts of a `Dataset`, which describes them; None: it has not."""

    renumbers: bool = False
    """Whether it is samples of its `dataset`, numbered from 0, and reads by nothing else."""
    thread_safe: bool = False
    multi_label: bool = False
    synthetic: bool = False
    class_names: Sequence[str] | None = None
    missed_classes: tuple[str, str] = ("", "")
    folder: str | None = None
    left_out: Mapping[str, int] | None = None
    crop: int = 1
    """Pixels a side that evaluation cuts out of an image."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    labels: Any = None
    label_sets: Sequence[Sequence[int]] | None = None
    """Classes of each set that `labels` numbers."""
    file_ends: Sequence[int] | None = None
    name_hashes: Any = None
    fingerprint: Callable[[], str] | None = None
    batch: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    read_ahead: Callable[[int, int], None] | None = None
    crops: Callable[[int, Callable[[int, int], Sequence[Box]], tuple[int, int]], tuple[Tensor, Label]] | None = None
    crops_into: Callable[[int, Callable[[int, int], Sequence[Box]], Tensor], tuple[Tensor, Label]] | None = None
    evaluation_sample: Callable[[int], tuple[Tensor, Label]] | None = None
    evaluation_views: Callable[[int, int, Sequence[int]], tuple[Tensor, Label]] | None = None


class AugmentationDeclarations:
    """Parts of an `Augmentation` or a `TwoPartAugmentation`; None: it has not."""

    views: Callable[[tuple[int, int], int], Sequence[tuple[Box, bool]]] | None = None
    augment_batch: Callable[..., tuple[Tensor, Tensor]] | None = None
    size_at: Callable[[int], int | None] | None = None


class DataModuleDeclarations:
    """Attributes of a user's LightningDataModule that a model may be built with; None: it has not."""

    classes: int | None = None
    num_classes: int | None = None
    """Another name of `classes`."""
    image_shape: Sequence[int] | None = None


def of_dataset(dataset: Any) -> DatasetDeclarations:
    return _declarations_of(dataset, DatasetDeclarations)


def of_augmentation(augment: Any) -> AugmentationDeclarations:
    """What an augmentation declares; nothing if it is None."""
    return _declarations_of(augment, AugmentationDeclarations)


def of_data_module(module: Any) -> DataModuleDeclarations:
    return _declarations_of(module, DataModuleDeclarations)


def _declarations_of(part: Any, defaults: type[Defaults]) -> Defaults:
    return cast(Defaults, _View(part, defaults))


class _View:
    """Attributes of a part as it has them when they are read, else their defaults."""

    def __init__(self, part: Any, defaults: type):
        self._part = part
        self._defaults = defaults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name, getattr(self._defaults, name))
