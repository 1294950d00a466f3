"""Batches of reading processes in a ring of shared memory."""

import gc
from itertools import islice

import pytest
import torch
from runs import HERE, Freeze

from leyden.trainer.config.schema import load
from leyden.trainer.data.batch_memory import RowLayout
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.shared_ring import SharedRing, SharedSlots

LAYOUT = RowLayout(2, torch.Size((3, 4, 5)), torch.uint8, channels_last=True)


def test_what_is_put_into_a_slot_is_what_comes_out_and_the_slot_comes_back() -> None:
    ring, reader = SharedRing(LAYOUT, 3, 2), SharedSlots()
    kept: list[torch.Tensor] = []
    for number in range(2):
        slot = ring.lend(3)
        assert slot is not None
        room = reader.room(slot, 3)
        assert room is not None
        room.images.fill_(number + 1)
        kept.append(ring.images(slot, 3))
    assert ring.lend(3) is None, "both are kept"
    assert [(images.shape, int(images.min()), int(images.max())) for images in kept] == [
        ((6, 3, 4, 5), 1, 1),
        ((6, 3, 4, 5), 2, 2),
    ]
    assert kept[0].is_contiguous(memory_format=torch.channels_last)
    view = kept.pop()[1:2, :, 2]
    assert ring.lend(3) is None, "a view keeps it, too"
    del view
    slot = ring.lend(2)
    assert slot is not None
    ring.give_back(slot)
    assert ring.lend(1 << 20) is None
    assert ring.lend(3) == slot


def test_a_slot_that_cannot_be_opened_is_no_room() -> None:
    slot = SharedRing(LAYOUT, 3, 1).lend(3)  # the ring is gone, and its memory with it
    assert slot is not None
    assert SharedSlots().room(slot._replace(path="/proc/self/fd/nothing"), 3) is None


@pytest.fixture
def data(freeze: Freeze) -> ImageData:
    waits = ["dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", HERE,
             "dataset._target_=reading_examples.Waits", "model=mlp", "model.hidden=[4]", "batch_size=8"]  # fmt: skip
    return ImageData(load(freeze("run", *waits, "dataset.num_workers=2", "dataset.prefetch=1")), (0, 1))


def unused(data: ImageData) -> int:
    """Slots of the ring of training that are free."""
    processes = data._loading._processes
    assert processes is not None
    ring = processes._loaders[True][1]._ring
    assert ring is not None
    return len(ring._unused)


@pytest.mark.slow
def test_batches_of_processes_lie_in_the_ring_and_none_is_overwritten(data: ImageData) -> None:
    expected = {epoch: [part.batch[0].clone() for part in data.train_parts(epoch)] for epoch in range(3)}
    gc.collect()
    assert unused(data) == 4, "two processes read a batch ahead, and two more"
    found = list(data.train_parts(1))  # more than there are slots
    assert unused(data) == 0
    assert all(torch.equal(part.batch[0], other) for part, other in zip(found, expected[1], strict=True))
    del found
    for _ in range(5):
        left = data.train_parts(2, first_step=1)
        next(left)  # left in the middle, while others are read
        del left
    again = [torch.equal(part.batch[0], other) for part, other in zip(data.train_parts(2), expected[2], strict=True)]
    assert all(again)
    gc.collect()
    assert unused(data) == 4
    assert [len(part.batch[0]) for part in islice(data.train_parts(0), 2)] == [8, 8]
    data.close()
