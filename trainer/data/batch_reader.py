"""Reading of one batch: sample by sample, or as a whole from a dataset in memory."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..base.rng import keep_host_state
from .collation import Collate
from .splits import Reader
from .view_reader import ViewKeys, resize_images

Sample = TypeVar("Sample")
Pairs = Sequence[tuple[int, int]]
"""Index and key of each sample of a batch."""


class ReadBatch(NamedTuple):
    """A batch in host memory."""

    batch: Any
    """(images, labels) or (images, labels, ViewKeys); None: every sample was unreadable."""
    problems: list[str]
    """Errors of its unreadable samples."""


class BatchSource(Protocol):
    """Reads batches in the process that asks for them."""

    def read(self, pairs: Pairs) -> ReadBatch: ...


class SampleBatches(Generic[Sample]):
    """Reads the samples of a batch one by one, and stacks them."""

    def __init__(self, reader: Reader[Sample], collate: Collate[Sample]):
        self.reader = reader
        self.collate = collate

    def host_state(self) -> AbstractContextManager[None]:
        """In the context the process's generators may be seeded for each sample."""
        return keep_host_state() if self.reader.seeded else nullcontext()

    def read(self, pairs: Pairs) -> ReadBatch:
        with self.host_state():
            samples, problems = self.reader.__getitems__(pairs)
        return ReadBatch(self.collate(samples) if samples else None, problems)


class WholeBatches:
    """Reads a batch of a dataset in memory in one call.

    Args:
        dataset: has `batch(indices)`.
        augment: has `augment_images(images, keys)`; None: images stay as they are.
    """

    def __init__(self, dataset: Any, augment: Any = None):
        self._dataset = dataset
        self._augment = augment

    def read(self, pairs: Pairs) -> ReadBatch:
        images, labels = self._dataset.batch(_indices(pairs))
        if self._augment is not None:
            images = self._augment.augment_images(images, [key for _, key in pairs])
        return ReadBatch((images, labels), [])


class WholeViewBatches:
    """Batches like `WholeBatches`, for an augmentation that changes the batch on its device and chooses no crops.

    Args:
        size: height and width to which images are resized.
    """

    def __init__(self, dataset: Any, size: tuple[int, int], epoch: int):
        self._dataset = dataset
        self._size = size
        self._epoch = epoch

    def read(self, pairs: Pairs) -> ReadBatch:
        indices = _indices(pairs)
        images, labels = self._dataset.batch(indices)
        keys = ViewKeys(torch.tensor([key for _, key in pairs]), indices, None, self._epoch, 1)
        return ReadBatch((resize_images(images, self._size), labels, keys), [])


def _indices(pairs: Pairs) -> Tensor:
    """Indices of the samples: int64 (samples,)."""
    return torch.from_numpy(np.fromiter((index for index, _ in pairs), np.int64, len(pairs)))
