"""Loaders as `self.trainer` shows them."""

from collections.abc import Iterator
from typing import Any


class LoaderView:
    """One of Leyden's datasets as a DataLoader: length and attributes, without batches.

    Args:
        dataset: the samples.
        batch_size: samples of a global batch.
        batches: of an epoch.
    """

    def __init__(self, dataset: Any, batch_size: int, batches: int):
        self.dataset = dataset
        self.batch_size = batch_size
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("only the loop reads a dataset of Leyden's; index trainer.train_dataloader.dataset")
