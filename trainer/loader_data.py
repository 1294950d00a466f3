"""Somebody's LightningDataModule under Leyden's loop.

Its loaders stay as they are but for the sampler of several workers: `batch_size` is then the loader's own, for each
worker. Shuffling is made a function of (seed, epoch), and a resumed epoch reads past what was trained already.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from .config import Config
from .data import Part
from .random_state import mix
from .targets import build, locate


def is_data_module(target: str) -> bool:
    """Whether a `_target_` is a LightningDataModule rather than a dataset."""
    found = locate(target)
    return inspect.isclass(found) and issubclass(found, LightningDataModule)


class LoaderData:
    """The loop's view of a LightningDataModule."""

    synthetic = False

    def __init__(self, config: Config, fabric: Fabric):
        """
        Raises:
            ValueError: settings that only Leyden's own datasets can honour.
        """
        if config.dataset.partitions != 1 or config.augment is not None:
            raise ValueError(
                f"{config.dataset.target} is a LightningDataModule: dataset.partitions and augment are for datasets"
            )
        self.config = config
        self.fabric = fabric
        self.module: LightningDataModule = build(config.dataset)
        if fabric.local_rank == 0:
            self.module.prepare_data()
        fabric.barrier()
        self.module.setup("fit")
        self.module.setup("test")
        self.classes = getattr(self.module, "classes", None)
        self.image_shape = getattr(self.module, "image_shape", None)
        self.bad_samples: dict[str, None] = {}
        self._train = self._loader("train_dataloader")
        self._evaluation = {split: self._loader(f"{split}_dataloader") for split in ("val", "test")}
        if self._train is None:
            raise ValueError(f"{config.dataset.target} has no train_dataloader")

    def _loader(self, name: str) -> Any:
        if getattr(type(self.module), name, None) is getattr(LightningDataModule, name):
            return None
        loader = getattr(self.module, name)()
        if isinstance(loader, (list, tuple)) and loader and isinstance(loader[0], DataLoader):
            if len(loader) > 1:
                raise ValueError(f"{type(self.module).__name__}.{name} gives {len(loader)} loaders; one is supported")
            loader = loader[0]
        if isinstance(loader, DataLoader) and self.fabric.world_size > 1:
            return self.fabric.setup_dataloaders(loader, move_to_device=False)
        return loader

    @property
    def steps_per_epoch(self) -> int:
        """
        Raises:
            ValueError: the loader has no length and no limit says one.
        """
        try:
            batches = len(self._train)
        except TypeError:
            limit = self.config.trainer.limit_train_batches
            if isinstance(limit, int):
                return limit
            raise ValueError(
                f"{type(self.module).__name__}.train_dataloader has no length: trainer.limit_train_batches=N says it"
            ) from None
        return -(-batches // self.config.trainer.accumulate_grad_batches)

    def train_parts(self, epoch: int, first_step: int = 0) -> Iterator[Part]:
        accumulate = self.config.trainer.accumulate_grad_batches
        batches = _seeded(self._train, mix(self.config.seed, epoch), epoch)
        for _ in range(first_step * accumulate):
            next(batches)
        total = len(self._train) if hasattr(self._train, "__len__") else None
        for number, batch in enumerate(batches, start=first_step * accumulate):
            group_end = number + accumulate - number % accumulate
            parts = accumulate if total is None or group_end <= total else total % accumulate
            samples = batch_samples(batch)
            ends_step = (number + 1) % accumulate == 0 or number + 1 == total
            yield Part(batch, samples, samples * self.fabric.world_size, 1.0 / parts, ends_step)

    def evaluation_batches(self, split: str) -> Iterator[tuple[Any, int]]:
        for batch in self._evaluation[split]:
            yield batch, batch_samples(batch)

    def evaluation_steps(self, split: str) -> int:
        return len(self._evaluation[split])

    def has(self, split: str) -> bool:
        return self._evaluation[split] is not None

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.module.on_after_batch_transfer(batch, dataloader_idx)


def _seeded(loader: Any, seed: int, epoch: int) -> Iterator[Any]:
    """The loader's batches, shuffled as the seed says, without moving the run's own random numbers."""
    sampler = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    kept = torch.get_rng_state()
    torch.manual_seed(seed)
    iterator = iter(loader)
    first = next(iterator, None)  # samplers draw their seed when they are first asked
    torch.set_rng_state(kept)
    if first is not None:
        yield first
        yield from iterator


def batch_samples(batch: Any) -> int:
    """Samples in a batch: the first dimension of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    for item in items:
        found = batch_samples(item)
        if found:
            return found
    return 1 if isinstance(batch, (list, tuple, dict)) and items else 0
