"""Batches out of samples, in new memory or in a buffer that holds their images already."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.protocols import Label
from .view_reader import SampleViews, ViewKeys, one_thread

Sample = TypeVar("Sample")


class Collate(Protocol[Sample]):
    """What makes a batch of samples."""

    def images_of(self, sample: Sample) -> Tensor:
        """The rows of the batch that are this sample's: (rows, channels, height, width)."""
        ...

    def with_images(self, sample: Sample, images: Tensor) -> Sample:
        """The sample with its rows in other memory."""
        ...

    def __call__(self, samples: Sequence[Sample], images: Tensor | None = None) -> Any:
        """The batch of at least one sample.

        Args:
            images: all rows, where they lie in one tensor already.
        """
        ...


def stack_labels(labels: Sequence[Label]) -> Tensor:
    """Classes as int64 (samples,), targets of several classes as (samples, classes)."""
    targets = [label for label in labels if isinstance(label, Tensor) and label.ndim > 0]
    return torch.stack(targets) if targets else torch.tensor(labels)


class CollateSamples:
    """Stacks samples (image, label) into a batch (images, labels)."""

    def images_of(self, sample: tuple[Tensor, Label]) -> Tensor:
        return sample[0][None]

    def with_images(self, sample: tuple[Tensor, Label], images: Tensor) -> tuple[Tensor, Label]:
        return images[0], sample[1]

    def __call__(self, samples: Sequence[tuple[Tensor, Label]], images: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if images is None:
            images = torch.stack([image for image, _ in samples])
        return images, stack_labels([label for _, label in samples])


class CollateViews:
    """Stacks views of samples into a batch (images, labels, ViewKeys)."""

    def __init__(self, epoch: int):
        self._epoch = epoch

    def images_of(self, sample: SampleViews) -> Tensor:
        return sample.images

    def with_images(self, sample: SampleViews, images: Tensor) -> SampleViews:
        return sample._replace(images=images)

    def __call__(self, samples: Sequence[SampleViews], images: Tensor | None = None) -> tuple[Tensor, Tensor, ViewKeys]:
        if images is None:
            with one_thread():
                images = torch.cat([sample.images for sample in samples])
        counts = [len(sample.keys) for sample in samples]
        keys = ViewKeys(
            torch.tensor([key for sample in samples for key in sample.keys]),
            torch.tensor([sample.number for sample, count in zip(samples, counts, strict=True) for _ in range(count)]),
            None if samples[0].flips is None else torch.tensor([flip for s in samples for flip in s.flips or ()]),
            self._epoch,
            counts[0],
        )
        labels = stack_labels([s.label for s, count in zip(samples, counts, strict=True) for _ in range(count)])
        return images, labels, keys
