"""Evaluation on several views of each image: their reading, their batches, and the average of what is predicted."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..config.evaluation_views import EvaluationViews
from ..core.network.trained_network import network_of
from ..core.protocols import Label
from .collation import stack_labels
from .view_reader import one_thread

ViewedSample = tuple[Tensor, Label]
"""Views (views, channels, height, width) of an image, and its label."""


class EvaluationViewReader:
    """Reads all views of a sample, from one decoding."""

    def __init__(self, views: EvaluationViews):
        self._views = views

    def __call__(self, dataset: Any, index: int, key: int) -> ViewedSample:
        with one_thread():
            return dataset.evaluation_views(index, *self._views)


class CollateViewedSamples:
    """Stacks samples into a batch (images, labels), in which the views of an image are adjacent rows."""

    def images_of(self, sample: ViewedSample) -> Tensor:
        return sample[0]

    def with_images(self, sample: ViewedSample, images: Tensor) -> ViewedSample:
        return images, sample[1]

    def __call__(self, samples: Sequence[ViewedSample], images: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if images is None:
            images = torch.cat([views for views, _ in samples])
        return images, stack_labels([label for _, label in samples])


@contextmanager
def average_over_views(task: nn.Module, views: int, classes: int | None) -> Generator[None, None, None]:
    """While the task's model gives, for adjacent rows that are views of one image, one row of class scores.

    They are the logarithm of the mean of the views' softmax: cross entropy and accuracy are those of that mean.
    """
    model = network_of(task)
    if views == 1:
        yield
        return
    if model is task:
        raise ValueError("several views of an image need a task with a `model` that maps images to class scores")

    def average(module: nn.Module, inputs: Any, scores: Any) -> Tensor:
        if (
            not isinstance(scores, Tensor)
            or scores.ndim != 2
            or scores.shape[1] < (classes or 1)
            or len(scores) % views
        ):
            raise ValueError("several views of an image need a model that gives class scores (batch, classes)")
        wide = scores if scores.dtype is torch.float64 else scores.float()
        return wide.log_softmax(1).unflatten(0, (-1, views)).logsumexp(1) - math.log(views)

    hook = model.register_forward_hook(average)
    try:
        yield
    finally:
        hook.remove()
