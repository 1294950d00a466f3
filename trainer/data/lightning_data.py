"""User-provided LightningDataModules under Leyden's loop.

Their loaders are unchanged, except for the sampler of several workers. Their order becomes a function of (seed, epoch),
draws of random transforms one of (seed, epoch, batch, rank); a resumed epoch skips the batches already trained.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import cached_property
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.data import has_iterable_dataset
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, DistributedSampler
from typing_extensions import override

from ..base.log import log
from ..base.rng import keep_host_state, mix, seed_host, set_host_seed
from ..base.signals import IgnoreStopSignals
from ..config.faults import build_checked
from ..config.lightning.base_classes import overrides
from ..config.schema import Config
from ..config.targets import takes
from ..core import declarations
from ..core.batch import Part
from ..core.communication.plain_values import all_gather_values
from ..core.data_contract import DataContract
from ..core.lightning_adapter import refused_features_of_data
from ..core.lightning_compat import with_sampler, without_fabric
from ..core.torch_compat import begin_reading, draw_order, end_readers
from ..core.trainer_view.view import TrainerView
from .contents.found import Found, count_in_loaders, length_of
from .order.loader_order import Share, in_order, seeds_of_batches, start_epoch
from .order.reader_seeds import ReaderSeeds
from .order.smallest_batch import smallest_batch
from .process_batches import closed_at_exit

_END = object()
_EVALUATION = -1
"""The epoch in the random numbers of evaluation, the same every time."""


def refuse_reading_keys(config: Config, name: str) -> None:
    """
    Raises:
        ValueError: a key says what to read, and in which order, of loaders that read by themselves.
    """
    for key, usual in (
        ("cache", "none"),
        ("shuffling", "global"),
        ("sampling", "instance_balanced"),
        ("drop_last", False),
    ):
        value = getattr(config.dataset, key)
        if value != usual:
            text = f"dataset.{key}={str(value).lower()} is for Leyden's datasets, and {name} reads by its own loaders"
            raise ValueError(f"{text}: dataset.{key}={str(usual).lower()}")


class LoaderData(DataContract):
    """The loop's view of a LightningDataModule."""

    def __init__(self, config: Config, fabric: Fabric, parts: int = 1, dummy_batches: bool = False):
        """Build the data module and open its loaders.

        Args:
            parts: number of parts into which the strategy divides each accumulated part.
            dummy_batches: a worker with fewer batches to evaluate than another continues with uncounted dummy batches.

        Raises:
            ValueError: unsupported settings or hooks; loaders that are not a single DataLoader.
        """
        self._settings(config, fabric, parts, dummy_batches)
        self.module = self._build()
        if fabric.local_rank == 0:
            self.module.prepare_data()
        fabric.barrier()
        self.module.setup("fit")
        declared = declarations.of_data_module(self.module)
        self.classes = declared.num_classes if declared.classes is None else declared.classes
        self.image_shape = declared.image_shape
        self._open()

    def _settings(self, config: Config, fabric: Fabric, parts: int, dummy_batches: bool) -> None:
        self.config = config
        self.fabric = fabric
        self.accumulate = config.trainer.accumulate_grad_batches * parts
        self.dummy_batches = dummy_batches and fabric.world_size > 1
        self.bad_samples: dict[str, None] = {}
        self._train: Any = None
        self._evaluation: dict[str, Any] = {"val": None, "test": None}
        closed_at_exit.add(self)

    @property
    @override
    def datamodule(self) -> LightningDataModule | None:
        return self.module

    @property
    @override
    def user_module(self) -> LightningDataModule | None:
        return self.module

    @property
    def source(self) -> LightningDataModule | LightningModule:
        """The module that provides the loaders."""
        return self.module

    @cached_property
    def found(self) -> Found:
        """What was found in the data: the lengths of the loaders' datasets."""
        loaders = {split: self.loader_of(split) for split in ("train", "val", "test")}
        return count_in_loaders(type(self.source).__name__, self.classes, loaders, self.fabric.world_size)

    @property
    def batch_and_most(self) -> tuple[int, int | None]:
        """Samples of a batch of all workers (0: unknown), and of the training set."""
        size = getattr(self._train, "batch_size", None) or 0
        return size * self.fabric.world_size, length_of(getattr(self._train, "dataset", None))

    def close(self) -> None:
        """End the processes that live for many epochs. A later epoch starts them again."""
        for loader in (self._train, *self._evaluation.values()):
            if isinstance(loader, DataLoader):
                end_readers(loader)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.module.on_after_batch_transfer(batch, dataloader_idx)

    def _open(self) -> None:
        """Get the loaders from the module."""
        name = type(self.source).__name__
        self._train = self._loader("train_dataloader")
        self._evaluation["val"] = self._loader("val_dataloader")
        if overrides(self.source, "test_dataloader"):
            self.source.setup("test")
            self._evaluation["test"] = self._loader("test_dataloader")
        if self._train is None:
            raise ValueError(f"{name} has no train_dataloader")
        if _length(self._train) is None and not isinstance(self.config.trainer.train_limit, int):
            raise ValueError(f"{name}.train_dataloader has no length: set trainer.limit_train_batches=N")

    def _build(self) -> LightningDataModule:
        """The module, built with the run's batch_size (of one worker and step) and num_workers if it has them."""
        config, name = self.config, self.config.dataset.target
        if config.dataset.partitions != 1:
            raise ValueError(f"{name} is a LightningDataModule: dataset.partitions is for Leyden's datasets")
        refuse_reading_keys(config, name)
        if config.augment is not None:
            log.info("augment is not used: %s augments in its own loaders", name)
        given = {
            "batch_size": self._own_batch(config.batch_size),
            "num_workers": config.dataset.num_workers,
            "val_fraction": config.dataset.val_fraction,
        }
        module: LightningDataModule = build_checked("dataset", config.dataset, **given)
        missing = refused_features_of_data(module)
        if missing:
            raise ValueError("Leyden's loop does not support features of the data module: " + "; ".join(missing))
        early: Any = SimpleNamespace(config=config, fabric=self.fabric, data=None, epoch=0, step=0, metrics={})
        view: Any = TrainerView(early)  # its setup may read world_size
        module.trainer = view
        return module

    def _loader(self, name: str) -> Any:
        """The module's loader, restricted to this worker's share; None if it has none."""
        if not overrides(self.source, name):
            return None
        loader = getattr(self.source, name)()
        where = f"{type(self.source).__name__}.{name}"
        if isinstance(loader, (list, tuple)) and (not loader or isinstance(loader[0], DataLoader)):
            if len(loader) > 1:
                raise ValueError(f"{where} gives {len(loader)} loaders; one is supported")
            loader = loader[0] if loader else None
        if isinstance(loader, dict) or type(loader).__name__ == "CombinedLoader":
            raise ValueError(f"{where} gives several loaders ({type(loader).__name__}); one is supported")
        if isinstance(loader, DataLoader):
            seeds = ReaderSeeds(self.fabric.global_rank, loader.worker_init_fn, loader.persistent_workers)
            loader.worker_init_fn = IgnoreStopSignals(seeds)
            if loader.pin_memory and self.fabric.device.type != "cuda" and torch.cuda.is_available():
                loader.pin_memory = False
                log.info("%s: pin_memory is off: topology.device.kind=cpu", where)
            if self.config.trainer.overfit_batches and name != "test_dataloader" and not has_iterable_dataset(loader):
                loader = in_order(loader)
        if loader is None or self.fabric.world_size == 1:
            return loader
        if not isinstance(loader, DataLoader) or has_iterable_dataset(loader):
            log.warning("%s: every worker reads all of it, unless the dataset divides itself", where)
            return loader
        try:
            return self._shared(loader, training=name == "train_dataloader")
        except (TypeError, MisconfigurationException) as error:
            raise ValueError(f"{where} cannot be divided among the workers: {error}") from error

    def _shared(self, loader: Any, training: bool) -> Any:
        """The loader with a sampler for this worker's share; in evaluation without padding samples."""
        if isinstance(loader.sampler, DistributedSampler):
            return loader
        if not training:
            return with_sampler(loader, Share(loader.sampler, self.fabric.global_rank, self.fabric.world_size))
        shared: Any = self.fabric.setup_dataloaders(loader, move_to_device=False)
        shared = without_fabric(shared)  # the wrapper would count epochs itself, from 0 after a resumption
        shared.sampler.seed = self.config.seed
        return shared

    def _own_batch(self, batch_size: int) -> int:
        """Samples of a batch of one worker's loader."""
        return max(1, batch_size // (self.fabric.world_size * self.accumulate))

    def smallest_batch(self, batch_size: int) -> int | None:
        """Samples of the smallest batch that this worker would compute in an epoch, with this `batch_size` of the
        config if the module takes it; None: unknown."""
        supplied = self.datamodule is not None and takes(type(self.datamodule), "batch_size")
        supplied = supplied and "batch_size" not in self.config.dataset.arguments
        size = getattr(self._train, "batch_size", None)
        follows = supplied and size == self._own_batch(self.config.batch_size)
        return smallest_batch(self._train, self._own_batch(batch_size) if follows else None)

    @property
    def steps_per_epoch(self) -> int:
        batches = _length(self._train)
        if batches is None:
            limit = self.config.trainer.train_limit
            assert isinstance(limit, int)
            return limit
        return -(-batches // self.accumulate)

    def train_parts(self, epoch: int, first_step: int = 0, end: int | None = None) -> Iterator[Part]:
        """The epoch's batches, `accumulate_grad_batches` of them a step, weighted by their samples.

        User-provided loaders read ahead by themselves: `end` is ignored.
        """
        batches, workers = self._stream(self._train, epoch), self.fabric.world_size
        skipped = first_step * self.accumulate
        next(islice(batches, skipped, skipped), None)
        if _length(self._train) is None:
            yield from self._parts_of_unknown_length(batches)
            return
        if self.accumulate == 1:
            for batch, seeded in batches:
                samples = batch_samples(batch)
                yield Part(batch, samples, samples * workers, 1.0, ends_step=True, seeded=seeded)
            return
        for number, (batch, seeded) in enumerate(batches, start=skipped):
            parts, whole = self._group(number - number % self.accumulate)
            samples = batch_samples(batch)
            weight = samples / whole if whole else 1.0 / parts
            ends_step = number % self.accumulate == parts - 1
            yield Part(batch, samples, samples * workers, weight, ends_step, seeded=seeded)

    def _parts_of_unknown_length(self, batches: Iterator[tuple[Any, bool]]) -> Iterator[Part]:
        """Parts of a stream; the batches of a step are read together, to know the last one."""
        while group := [batch for batch, _ in islice(batches, self.accumulate)]:
            sizes = [batch_samples(batch) for batch in group]
            for number, (batch, size) in enumerate(zip(group, sizes, strict=True)):
                weight, ends_step = size / max(1, sum(sizes)), number == len(group) - 1
                yield Part(batch, size, size * self.fabric.world_size, weight, ends_step)

    def _group(self, first: int) -> tuple[int, int | None]:
        """Number of batches of the step beginning with batch `first`, and of their samples if the loader has it."""
        batches = len(self._train)
        parts = min(self.accumulate, batches - first)
        size = getattr(self._train, "batch_size", None)
        sampler = getattr(self._train, "sampler", None)
        if parts == 1 or size is None or not isinstance(sampler, Sized):
            return parts, None
        whole = batches * size if self._train.drop_last else len(sampler)
        return parts, min((first + parts) * size, whole) - first * size

    def evaluation_batches(self, split: str, most: int | None = None) -> Iterator[tuple[Any, int]]:
        with keep_host_state():
            loader = self._evaluation[split]
            missing = (self._most_batches(loader) or 0) - (_length(loader) or 0)
            yield from islice(self._evaluation_stream(loader, missing), most)

    def _evaluation_stream(self, loader: Any, missing: int) -> Iterator[tuple[Any, int]]:
        for batch, _ in self._stream(loader, _EVALUATION):
            yield batch, batch_samples(batch)
        for _ in range(missing):
            yield loader.collate_fn([loader.dataset[0]]), 0

    def _most_batches(self, loader: Any) -> int | None:
        """Batches of this worker; with collective forwards, of the worker with the most."""
        mine = _length(loader)
        if not self.dummy_batches or mine is None:
            return mine
        return max(all_gather_values(mine))

    def evaluation_steps(self, split: str) -> int:
        """Number of batches to evaluate.

        Raises:
            ValueError: a fraction of a loader without length.
        """
        length = self._most_batches(self._evaluation[split])
        limit = self.config.trainer.val_limit if split == "val" else self.config.trainer.limit_test_batches
        if length is None and isinstance(limit, float) and limit < 1.0:
            raise ValueError(f"trainer.limit_{split}_batches={limit}: {split}_dataloader has no length, give a number")
        return sys.maxsize if length is None else length

    def has(self, split: str) -> bool:
        return self._evaluation[split] is not None

    def loader_of(self, split: str) -> Any:
        """This worker's loader of "train", "val" or "test", or None."""
        return self._train if split == "train" else self._evaluation[split]

    def batches_of(self, split: str) -> int | None:
        """This worker's batches of a split; None for a stream."""
        return _length(self.loader_of(split))

    def share_bad_samples(self, fabric: Fabric) -> None:
        """Do nothing: user-provided loaders raise on unreadable samples."""

    partition_orders: Sequence[Sequence[int]] = ()
    """User-provided loaders have none."""

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)

    def _stream(self, loader: Any, epoch: int) -> Iterator[tuple[Any, bool]]:
        """The loader's batches in the epoch's order, the same on all workers; each worker seeds the draws of a batch by
        (seed, epoch, batch, rank). Generators of GPUs keep their state.

        Yields:
            A batch, and whether its draws were seeded.
        """
        seed = mix(self.config.seed, epoch)
        start_epoch(loader, max(0, epoch), seed)
        seed_host(seed)
        readers = getattr(getattr(loader, "worker_init_fn", None), "first", None)
        if isinstance(readers, ReaderSeeds):
            readers.begin_epoch(loader, seed)
        iterator = begin_reading(loader)
        drawn = draw_order(iterator)
        reads_here = getattr(loader, "num_workers", 0) == 0
        for number, batch_seed in enumerate(seeds_of_batches(seed, self.fabric.global_rank)):
            # other iterators may draw the order too, at their first batch
            seeded = reads_here and (drawn or number > 0)
            if seeded:
                set_host_seed(batch_seed)
            batch = next(iterator, _END)
            if batch is _END:
                return
            yield batch, seeded


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def batch_samples(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of its first tensor that has one."""
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if isinstance(first, torch.Tensor) and first.ndim:
        return first.shape[0]
    return next(_first_dimensions(batch), 1)


def _first_dimensions(batch: Any) -> Iterator[int]:
    if isinstance(batch, torch.Tensor):
        if batch.ndim:
            yield batch.shape[0]
    elif isinstance(batch, (Mapping, list, tuple)):
        for item in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _first_dimensions(item)
