"""Speed of a data pipeline on this machine: images per second by number of threads, CPU time per image by stage."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from ..config.schema import Config
from ..core import declarations, threads
from .batch_reader import SampleBatches
from .batch_sources import BatchSources
from .datamodule import ImageData
from .splits import Splits
from .view_reader import ViewReader

_IMAGES = 512
_ROUNDS = 3
_PIXEL = (0, 0, 1, 1)


@dataclass(frozen=True)
class LoadingBench:
    """What was measured."""

    images_per_second: dict[int, float]
    """Images a second by number of reading threads; with 0 the loop itself reads."""
    threads: int
    """The number that reads the most."""
    cpu_ms: dict[str, float]
    """CPU milliseconds per image of each stage, on one thread."""
    images: int
    """Read in each of the rounds."""
    cores: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(config: Config) -> LoadingBench:
    """Read some batches with each number of threads, in turns.

    Raises:
        ValueError, OSError: the data cannot be read.
    """
    splits = Splits.of(config.dataset)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one would count while it waits in a loop for work
    try:
        speeds, images = _speeds(config, splits)
        stages = _stages(config, splits)
    finally:
        torch.set_num_threads(before)
    fastest = max(speeds.values())
    best = min(number for number, speed in speeds.items() if speed >= 0.97 * fastest)
    return LoadingBench(speeds, best, stages, images, threads.cores())


def thread_numbers(config: Config, splits: Splits) -> list[int]:
    """The numbers to try: as many as there are cores, and halves of it."""
    with _data(config, splits, 0) as data:
        if not isinstance(BatchSources(splits, data.augment)(("train", 0)), SampleBatches):
            return [0]
        most = threads.cores() if data.thread_safe else 1
    numbers = {0}
    while most > 0:
        numbers.add(most)
        most //= 2
    return sorted(numbers)


def _speeds(config: Config, splits: Splits) -> tuple[dict[int, float], int]:
    steps = -(-_IMAGES // config.batch_size)
    rates: dict[int, list[float]] = {number: [] for number in thread_numbers(config, splits)}
    images = 0
    for round_number in range(_ROUNDS + 1):
        for number, found in rates.items():
            with _data(config, splits, number) as data:
                began = perf_counter()
                images = sum(part.samples for part in data.train_parts(0, 0, steps))
                rate = images / (perf_counter() - began)
            found += [rate] if round_number else []  # the first warms the disk's cache
    return {number: median(found) for number, found in rates.items()}, images


@contextmanager
def _data(config: Config, splits: Splits, number: int) -> Iterator[ImageData]:
    loading = {"threads": number, "num_workers": 0}
    data = ImageData(
        config.model_copy(update={"dataset": config.dataset.model_copy(update=loading)}), (0, 1), splits=splits
    )
    try:
        yield data
    finally:
        data.close()


def _stages(config: Config, splits: Splits) -> dict[str, float]:
    """CPU milliseconds per image of each stage."""
    with _data(config, splits, 0) as data:
        draws = list(islice((draw for batch in data.order.batches(0) for draw in batch.tolist()), _IMAGES))
        pairs = data.with_keys(draws, 0)
        indices = [index for index, _ in pairs]
        batches = [pairs[first : first + config.batch_size] for first in range(0, len(pairs), config.batch_size)]
        source = BatchSources(splits, data.augment)(("train", 0))
        stages = {}
        if isinstance(source, SampleBatches):
            stages = _stages_of_samples(source, data, indices, batches)
        else:
            stages["batches from memory"] = _cpu_ms(lambda: [source.read(batch) for batch in batches], len(pairs))
        read = [source.read(batch).batch for batch in batches]
        stages["batch augmentation"] = _cpu_ms(
            lambda: [data.on_after_batch_transfer(batch, 0) for batch in read if batch is not None], len(pairs)
        )
    return {name: max(0.0, milliseconds) for name, milliseconds in stages.items()}


def _stages_of_samples(
    source: SampleBatches[Any], data: ImageData, indices: Sequence[int], batches: Sequence[Sequence[tuple[int, int]]]
) -> dict[str, float]:
    dataset, reader, count = data.train_set, source.reader, len(indices)
    samples = [reader.__getitems__(batch)[0] for batch in batches]
    whole = _cpu_ms(lambda: [reader.__getitems__(batch) for batch in batches], count)
    collated = _cpu_ms(lambda: [source.collate(each) for each in samples if each], count)
    crops = declarations.of_dataset(dataset).crops
    if isinstance(reader.read, ViewReader) and crops is not None:
        # one pixel of each image: all but the crop and its resizing
        decoded = _cpu_ms(lambda: _each(lambda i: crops(i, lambda height, width: [_PIXEL], (1, 1)), indices), count)
        return {"read + decode": decoded, "crop + resize": whole - decoded, "collate": collated}
    plain = _cpu_ms(lambda: _each(lambda i: dataset[i], indices), count)
    return {"read + decode + resize": plain, "augmentation of single images": whole - plain, "collate": collated}


def _each(read: Callable[[int], Any], indices: Sequence[int]) -> None:
    for index in indices:
        try:
            read(index)
        except (OSError, ValueError):  # a bad sample, which the run would replace
            continue


def _cpu_ms(work: Callable[[], Any], count: int) -> float:
    """The least of the rounds, per image."""
    found: list[float] = []
    for _ in range(_ROUNDS):
        began = process_time()
        work()
        found.append(1000 * (process_time() - began) / count)
    return min(found)
