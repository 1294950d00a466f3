"""Order of samples by blocks, reading ahead of it, and partitions by class or by file."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import POINTS, TINY, Freeze, task
from shard_examples import prepared, silent

from leyden.datasets.digits import Digits
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.order.block_shuffle import BlockShuffle
from leyden.trainer.data.order.partitioning import partitions_of
from leyden.trainer.data.order.read_ahead import ReadAhead
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.data.splits import Subset
from leyden.trainer.entrypoints.start import start

BLOCKS = BlockShuffle(samples=5, buffer=3)


def order_of(samples: int, blocks: BlockShuffle = BLOCKS, seed: int = 0, batch: int = 4) -> SampleOrder:
    return SampleOrder(samples, batch, seed, blocks=blocks)


# --- blocks


@given(
    samples=st.integers(1, 200), block=st.integers(1, 60), buffer=st.integers(1, 9), seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_an_epoch_takes_buffers_of_whole_blocks(samples: int, block: int, buffer: int, seed: int, epoch: int) -> None:
    order = order_of(samples, BlockShuffle(block, buffer), seed)
    flat = torch.cat(order.batches(epoch)).tolist()
    assert sorted(flat) == list(range(samples))
    buffers = list(order.buffers(epoch))
    counts = [len(each) for each in buffers]
    assert max(counts) <= buffer
    assert max(counts) - min(counts) <= 1, "no small buffer at the end of an epoch, whose samples would be alike"
    for blocks in buffers:
        assert all(each.start % block == 0 and len(each) == min(block, samples - each.start) for each in blocks)
        size = sum(map(len, blocks))
        assert sorted(flat[:size]) == sorted(chain(*blocks))
        flat = flat[size:]
    assert not flat


def test_blocks_and_samples_are_shuffled_anew_in_every_epoch() -> None:
    orders = [torch.cat(order_of(200, seed=seed).batches(epoch)).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    firsts = {next(iter(order_of(200).buffers(epoch)))[0].start for epoch in range(20)}
    assert len(firsts) > 8
    assert all(order[:15] != sorted(order[:15]) for order in orders)


def test_where_nothing_is_shuffled_nor_are_blocks() -> None:
    order = SampleOrder(20, 4, 0, blocks=BLOCKS, shuffled=False)
    assert torch.cat(order.batches(3)).tolist() == list(range(20))
    assert not list(order.buffers(3))


def test_blocks_stay_in_their_partition(freeze: Freeze, tmp_path: Path) -> None:
    held = list(torch.arange(30).tensor_split([11, 18]))
    order = SampleOrder(30, 4, 0, 3, [2, 0, 1], held=held, blocks=BLOCKS)
    batches = [set(batch.tolist()) for batch in order.batches(0)]
    assert order.ends(0) == [3, 6, 8]
    assert set().union(*batches[:3]) == set(range(18, 30))
    assert set().union(*batches[3:6]) == set(range(11))
    found = [number for blocks in order.buffers(0) for block in blocks for number in block]
    assert sorted(found[:12]) == list(range(18, 30))


# --- reading ahead


class Asked:
    """Notes the blocks that are asked for."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []

    def __call__(self, first: int, end: int) -> None:
        self.blocks.append((first, end))

    @property
    def samples(self) -> Counter[int]:
        return Counter(number for first, end in self.blocks for number in range(first, end))


@given(samples=st.integers(1, 150), block=st.integers(1, 40), buffer=st.integers(1, 5), first=st.integers(0, 40))
def test_each_block_is_asked_for_once_and_before_its_use(samples: int, block: int, buffer: int, first: int) -> None:
    order, asked = order_of(samples, BlockShuffle(block, buffer)), Asked()
    ahead = ReadAhead(order, asked, epochs=2)
    read = 0
    for epoch in (0, 1):
        position = 0
        for number, batch in enumerate(order.batches(epoch)):
            if (epoch, number) >= (0, first):
                ahead.reach(epoch, position, samples)
                before = asked.samples
                assert all(before[index] > epoch * (first == 0) for index in batch.tolist())
                read += len(batch)
                assert before.total() - read < 2 * block * buffer + 4 * block, "what is held is two buffers"
            position += len(batch)
    if first == 0:
        assert asked.samples == Counter(dict.fromkeys(range(samples), 2))


def test_a_resumed_epoch_asks_for_nothing_that_was_trained() -> None:
    order, asked = order_of(150), Asked()
    buffers = list(order.buffers(0))
    trained = sum(map(len, chain(*buffers[:4]))) + 3
    ReadAhead(order, asked, epochs=1).reach(0, trained, 150)
    expected = [*buffers[4], *buffers[5]]
    assert asked.blocks[:3] == [(each.start, each.stop) for each in buffers[4]]
    assert set(asked.blocks) <= {(each.start, each.stop) for each in expected}


def test_no_other_partition_is_asked_for() -> None:
    held = list(torch.arange(60).tensor_split([20]))
    order, asked = SampleOrder(60, 4, 0, 2, held=held, blocks=BLOCKS), Asked()
    ahead = ReadAhead(order, asked, epochs=5)
    for position in range(0, 20, 4):
        ahead.reach(0, position, end=20)
    assert asked.samples == Counter(range(20))


def disk_bytes() -> int:
    """Bytes that this process has had read from a disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


class Noise:
    """Images that no file system makes smaller."""

    classes, limits = 2, None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.random.default_rng(index).integers(0, 256, (3, 96, 96), dtype=np.uint8)), 0


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_what_is_asked_for_comes_out_of_memory(tmp_path: Path, kind: Any) -> None:
    Preparation(tmp_path / "set", {"train": Noise()}, size=None, format=kind, shard_size=24).run(silent)
    paths = sorted(path for path in (tmp_path / "set").iterdir() if path.suffix in (".tar", ".raw"))
    shards: Any = Shards("train", tmp_path / "set")
    data = Subset(shards, range(1, 64, 2))

    def disk_bytes_of(ask: bool) -> int:
        for path in paths:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if ask:
            data.read_ahead(5, 28)
            time.sleep(0.2)
        before = disk_bytes()
        for index in (27, 5, 16, 10):
            data[index]
        return disk_bytes() - before

    if disk_bytes_of(ask=False) == 0:
        pytest.skip("a file system without a disk")
    assert disk_bytes_of(ask=True) == 0


def test_an_error_of_reading_ahead_is_left_to_the_reader(tmp_path: Path) -> None:
    data = Shards("train", prepared(tmp_path))
    for path in (tmp_path / "shards").glob("*.tar"):
        path.unlink()
    data.read_ahead(0, 5)
    with pytest.raises(FileNotFoundError, match="train-"):
        data[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_reads_ahead_of_its_batches(workers: int, freeze: Freeze, tmp_path: Path) -> None:
    words = ["dataset=shards", f"dataset.root={prepared(tmp_path)}", "dataset.image_size=16", "batch_size=2",
             "model=mlp", "dataset.shuffling=blocks", "dataset.shuffle_block=2",
             "dataset.shuffle_buffer=1"]  # fmt: skip
    config, asked = load(freeze("run", *words)), Asked()
    data = ImageData(config, (0, workers))
    assert data._read_ahead is not None
    data._read_ahead._read_ahead = asked
    parts = data.train_parts(0)
    next(parts)
    data.close()
    blocks = [block for buffer in data.order.buffers(0) for block in buffer]
    assert asked.blocks[:1] == [(blocks[0].start, blocks[0].stop)]
    asked.blocks.clear()
    fresh = ImageData(config, (0, workers))
    assert fresh._read_ahead is not None
    fresh._read_ahead._read_ahead = asked
    next(fresh.ticket_parts(0, [workers], reads_ahead=False))
    fresh.close()
    assert (blocks[1].start, blocks[1].stop) in asked.blocks
    assert (blocks[0].start, blocks[0].stop) not in asked.blocks


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("words", "key", "text", "remedy"),
    [
        ("dataset.shuffling=random", "dataset.shuffling", "global", ""),
        ("dataset.shuffle_block=0", "dataset.shuffle_block", "must be at least 1", ""),
        ("dataset.shuffle_buffer=0", "dataset.shuffle_buffer", "must be at least 1", ""),
        ("dataset.partitioning=sorted", "dataset.partitioning", "class_balanced", ""),
        ("dataset.shuffling=blocks", "dataset.shuffling = blocks", "Digits has no read_ahead", ""),
        ("dataset.shuffling=blocks dataset.cache=memory", "dataset.shuffling = blocks", "keeps all images",
         "dataset.shuffling=global"),
        ("dataset.shuffling=blocks dataset.partitions=2", "dataset.partitioning = random", "must be contiguous",
         "dataset.partitioning=contiguous"),
        ("dataset.sampling=balanced", "dataset.sampling", "class_balanced", ""),
        ("dataset=shards dataset.root=x dataset.shuffling=blocks dataset.sampling=square_root",
         "dataset.sampling = square_root", "reads each sample once", "dataset.shuffling=global"),
        ("dataset=synthetic dataset.sampling=class_balanced", "dataset.sampling = class_balanced",
         "which Synthetic does not have", ""),
        ("dataset=synthetic dataset.partitions=2 dataset.partitioning=class_balanced",
         "dataset.partitioning = class_balanced", "which Synthetic does not have", ""),
    ],
)  # fmt: skip
def test_orders_that_there_are_not(
    words: str, key: str, text: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main([*TINY[:2], *words.split()]) == 2
    error = capsys.readouterr().err.replace("\n      ", " ")
    assert f"\n  {key}" in error, error
    assert text in error, error
    assert f"try: {remedy}" in error if remedy else "try:" not in error, error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["shuffling=blocks", "sampling=class_balanced"])
def test_loaders_that_read_by_themselves_have_their_own_order(freeze: Freeze, setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting}: is for Leyden's datasets, and lightning_examples\.P"):
        start(freeze("run", *POINTS, task("Plain"), f"dataset.{setting}"))


# --- partitions


class Labelled:
    """Samples by their class alone."""

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)


@given(labels=st.lists(st.integers(0, 3), min_size=5, max_size=80), count=st.integers(2, 5))
def test_balanced_partitions_have_equal_parts_of_each_class(labels: list[int], count: int) -> None:
    held = partitions_of(Labelled(labels), "class_balanced", count)
    assert held is not None
    assert sorted(torch.cat(list(held)).tolist()) == list(range(len(labels)))
    assert [len(each) for each in held] == SampleOrder(len(labels), 4, 0, count).sizes
    for number in range(4):
        counts = [sum(labels[index] == number for index in each.tolist()) for each in held]
        assert max(counts) - min(counts) <= 1


class Files(Labelled):
    """Samples in files of these sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__([0] * sum(sizes))
        self.file_ends = np.cumsum(sizes).tolist()


@given(sizes=st.lists(st.integers(1, 30), min_size=3, max_size=12), count=st.integers(2, 3))
def test_contiguous_partitions_divide_no_file(sizes: list[int], count: int) -> None:
    data = Files(sizes)
    held = partitions_of(data, "contiguous", count)
    assert held is not None
    assert torch.cat(list(held)).tolist() == list(range(len(data)))
    assert all(int(each[-1]) + 1 in data.file_ends for each in held)
    assert all(len(each) for each in held)
    assert max(map(len, held)) <= len(data) / count + 2 * max(sizes), "as equal as files allow"


def test_contiguous_partitions_of_a_part_of_the_samples() -> None:
    """Held out samples leave a file of its own to each partition, and fewer samples in it."""
    data: Any = Subset.__new__(Subset)
    data.dataset, data.indices = Files([4, 4, 4]), [0, 1, 2, 9, 10]
    held = partitions_of(data, "contiguous", 2)
    assert [each.tolist() for each in held or ()] == [[0, 1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"contiguous divides whole files, and Files has 2 for 3 partitions"):
        partitions_of(data, "contiguous", 3)


def test_partitions_of_samples_in_no_file_are_consecutive() -> None:
    held = partitions_of(Labelled([0] * 7), "contiguous", 3)
    assert [each.tolist() for each in held or ()] == [[0, 1, 2], [3, 4], [5, 6]]


def test_classes_are_those_of_the_samples(tmp_path: Path) -> None:
    shards = Shards("train", prepared(tmp_path))
    for data in (Digits("train"), shards):
        assert [int(label) for label in data.labels] == [int(data[index][1]) for index in range(len(data))]
    assert list(shards.file_ends) == [2, 4, 5]


def test_a_run_over_balanced_partitions_goes_on_inside_one(freeze: Freeze, tmp_path: Path) -> None:
    words = [*TINY, "dataset.partitions=3", "dataset.partitioning=class_balanced", "dataset.val_fraction=0"]
    data = ImageData(load(freeze("run", *words)), (0, 1))
    labels = torch.tensor(Digits("train").labels)
    counts = [labels[data.order.partition(number)].bincount(minlength=10) for number in range(3)]
    assert torch.stack(counts).float().std(0).max() < 0.6
    assert data.state_dict()["partition_sizes"] == [len(data.order.partition(number)) for number in range(3)]
