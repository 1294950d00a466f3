"""Splits that are read once and stay: `dataset.cache`."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch import Tensor

from ..base.device_copy import on_device
from ..base.errors import CannotStart, Problem
from ..base.open_files import is_lack
from ..base.rng import keep_host_state, seed_host
from ..core import declarations
from ..core.protocols import Dataset, Label
from ..core.threads import cores
from .abilities import has_batches, thread_safe
from .order.held_out import SPLIT_SEED
from .reading_threads import ReadingThreads
from .splits import Splits, evaluation_sample, no_labels, plain_sample

_CHUNK = 16
_PART = 0.8
"""Share of the free memory that a cache may take."""
Read = Callable[[Dataset, int, int], tuple[Tensor, Label]]


class CachedSplit:
    """The samples of a split, as bytes in one tensor.

    Args:
        dataset: whose samples they are.
        images: uint8 (samples, channels, height, width), on any device.
        problems: errors of the samples that cannot be read, which are raised again.
    """

    thread_safe: bool = True

    def __init__(self, dataset: Dataset, images: Tensor, labels: Tensor, problems: dict[int, str]):
        self.classes = dataset.classes
        self.image_shape = tuple(images.shape[1:])
        self.splits = dataset.splits
        self.multi_label = bool(declarations.of_dataset(dataset).multi_label)
        self._images = images
        self._labels = labels
        self._problems = problems
        if not problems:
            self.batch = self._batch

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Label]:
        """
        Raises:
            ValueError: the sample could not be read.
        """
        if index in self._problems:
            raise ValueError(self._problems[index])
        label = self._labels[index]
        return self._images[index], label if label.ndim else int(label)

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        images = self._images.index_select(0, on_device(indices, self._images.device))
        return images, self._labels[indices]


def with_cache(splits: Splits, kind: str, augment: Any, device: torch.device | None, node_workers: int) -> Splits:
    """The splits, read once.

    Args:
        kind: memory | device.
        device: of the run.
        node_workers: workers of this node, each of which has a cache of its own.

    Raises:
        CannotStart: the augmentation needs the images at their own size.
        ValueError: they do not fit, or are no images of one size and of bytes.
        OSError: a sample that may be good cannot be read.
    """
    if declarations.of_augmentation(augment).views is not None:
        text = "keeps images of one size, and augment chooses crops of the originals"
        raise CannotStart(Problem("dataset.cache", text, kind, "augment=none or dataset.cache=none"))
    target = device if kind == "device" and device is not None else torch.device("cpu")
    free = _free_bytes(target) // (1 if target.type == "cuda" else node_workers)
    room = _Room(int(_PART * free), kind)
    return replace(
        splits,
        train=_cache_split(splits.train, plain_sample, target, room),
        val=None if splits.val is None else _cache_split(splits.val, evaluation_sample, target, room),
        test=None if splits.test is None else _cache_split(splits.test, evaluation_sample, target, room),
    )


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


class _Room:
    """What is left for a cache."""

    def __init__(self, left: int, kind: str):
        self._left = left
        self._kind = kind

    def take(self, size: int, samples: int, shape: tuple[int, ...]) -> None:
        """
        Raises:
            ValueError: there is not so much.
        """
        if size > self._left:
            raise ValueError(
                f"dataset.cache={self._kind} needs {size / 1e9:.3g} GB for {samples} images of "
                f"{' x '.join(map(str, shape))}, and {self._left / 1e9:.3g} GB may be taken: dataset.cache=none"
            )
        self._left -= size


def _cache_split(dataset: Any, read: Read, device: torch.device, room: _Room) -> Any:
    in_memory = has_batches(dataset) and declarations.of_dataset(dataset).evaluation_sample is None
    if in_memory and device.type == "cpu":
        return dataset
    shape, first = _first_image(dataset, read)
    room.take(len(dataset) * first.numel(), len(dataset), shape)
    if in_memory:
        images, labels = dataset.batch(torch.arange(len(dataset)))
        problems: dict[int, str] = {}
    else:
        images, labels, problems = _read_all(dataset, read, shape)
    return CachedSplit(dataset, images.to(device), labels, problems)


def _first_image(dataset: Dataset, read: Read) -> tuple[tuple[int, ...], Tensor]:
    """Shape of the images, and the first that can be read."""
    error: Exception = ValueError("the split is empty")
    for index in range(len(dataset)):
        try:
            image, _ = read(dataset, index, 0)
        except (OSError, ValueError) as caught:
            error = caught
            continue
        if image.dtype is not torch.uint8:
            raise ValueError(f"dataset.cache holds bytes, and the images are {image.dtype}: dataset.cache=none")
        return tuple(image.shape), image
    raise ValueError(f"no sample can be read: {error}")


def _read_all(dataset: Dataset, read: Read, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, dict[int, str]]:
    images = torch.empty(len(dataset), *shape, dtype=torch.uint8)
    labels = no_labels(dataset, len(dataset))
    problems: dict[int, str] = {}

    def read_one(index: int) -> None:
        try:
            image, label = read(dataset, index, 0)
        except (OSError, ValueError) as error:
            if is_lack(error):
                raise
            problems[index] = str(error)
            return
        if tuple(image.shape) != shape:
            raise ValueError(f"dataset.cache needs images of one size: sample {index} has {tuple(image.shape)}")
        images[index].copy_(image)
        labels[index] = label

    if thread_safe(dataset):
        _in_threads(read_one, len(dataset))
        return images, labels, problems
    with keep_host_state():
        for index in range(len(dataset)):
            seed_host(SPLIT_SEED, index)  # the cache outlives a run, as trials of a sweep share it
            read_one(index)
    return images, labels, problems


def _in_threads(read_one: Callable[[int], None], count: int) -> None:
    threads, left, ended, errors = ReadingThreads(cores()), [0], threading.Event(), list[BaseException]()
    starts = range(0, count, _CHUNK)
    lock = threading.Lock()

    def chunk(start: int) -> None:
        try:
            for index in range(start, min(start + _CHUNK, count)):
                if not errors:
                    read_one(index)
        except BaseException as error:  # raised again by the thread that waits
            errors.append(error)
        with lock:
            left[0] += 1
            if left[0] == len(starts):
                ended.set()

    for start in starts:
        threads.add(lambda start=start: chunk(start), _CHUNK)
    ended.wait()
    threads.close()
    if errors:
        raise errors[0]
