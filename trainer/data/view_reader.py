"""Reading of the crops that a two-part augmentation has chosen, and their batches."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..base.rng import mix
from ..core import declarations
from ..core.protocols import Box, Dataset, Label


class SampleViews(NamedTuple):
    """The views of one sample."""

    images: Tensor
    """(views, channels, height, width)."""
    label: Label
    number: int
    """Index of the sample in the training data."""
    keys: Sequence[int]
    """Keys of the views."""
    flips: Sequence[bool] | None
    """Whether each view is still to be mirrored; None: none is, as the augmentation chooses none."""


class ViewKeys(NamedTuple):
    """What the augmentation of a batch is drawn from, as it travels with the batch: one row for each image."""

    keys: Tensor
    indices: Tensor
    flips: Tensor | None
    epoch: int
    views: int


class ViewReader:
    """Reads the views of samples.

    Args:
        augment: a TwoPartAugmentation; without `views` each sample is read as it is.
        size: height and width of each view.
        mirrors: views are mirrored as soon as they are read, while they are in the processor's cache; otherwise with
            their batch.
        writes: whether the dataset has `crops_into`.
    """

    def __init__(self, augment: Any, size: tuple[int, int], mirrors: bool = False, writes: bool = False):
        self._augment = augment
        self._size = size
        self._mirrors = mirrors
        self._writes = writes

    def __call__(self, dataset: Dataset, index: int, key: int) -> SampleViews:
        return self._read(dataset, index, key, None)

    def into(self, dataset: Dataset, index: int, key: int, room: Tensor) -> SampleViews:
        """Read as a call does, with the images in `room` if they fit and the dataset can write them there."""
        fits = self._writes and room.shape[2:] == self._size and room.dtype is torch.uint8
        return self._read(dataset, index, key, room if fits else None)

    def _read(self, dataset: Dataset, index: int, key: int, room: Tensor | None) -> SampleViews:
        if declarations.of_augmentation(self._augment).views is None:
            image, label = dataset[index]
            return SampleViews(resize_images(image[None], self._size), label, index, [key], None)
        chosen: list[tuple[Box, bool]] = []

        def boxes(height: int, width: int) -> list[Box]:
            chosen[:] = self._augment.views((height, width), key)
            return [box for box, _ in chosen]

        with one_thread():
            images, label = crops(dataset, index, boxes, self._size, room)
            flips = [flip for _, flip in chosen]
            if self._mirrors:
                images, flips = mirror_views(images, flips, in_place=images is room), [False] * len(flips)
        keys = [key if view == 0 else mix(key, view) for view in range(len(chosen))]
        return SampleViews(images, label, index, keys, flips)


def crops(
    dataset: Dataset, index: int, boxes: Any, size: tuple[int, int], room: Tensor | None = None
) -> tuple[Tensor, Label]:
    """Crops of a sample: by the dataset as it decodes, or cut out of the decoded image.

    Args:
        room: where a dataset that has `crops_into` may write them.
    """
    if room is not None:
        write = declarations.of_dataset(dataset).crops_into
        assert write is not None
        return write(index, boxes, room)
    read = declarations.of_dataset(dataset).crops  # isinstance of a protocol takes 20 microseconds
    if read is not None:
        return read(index, boxes, size)
    image, label = dataset[index]
    parts = [
        resize_images(image[None, :, top : top + height, left : left + width], size)
        for left, top, width, height in boxes(*image.shape[-2:])
    ]
    return torch.cat(parts), label


def mirror_views(images: Tensor, flips: Sequence[bool], in_place: bool) -> Tensor:
    """The views of a sample, of which those whose flip is true are mirrored."""
    if True not in flips:
        return images
    if len(flips) == 1:
        return images.copy_(images.flip(3)) if in_place else images.flip(3)
    changed = images if in_place else images.clone()
    for number, flip in enumerate(flips):
        if flip:
            changed[number : number + 1] = images[number : number + 1].flip(3)
    return changed


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (batch, channels, height, width), uint8 or float, resized by antialiased bilinear interpolation."""
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True, align_corners=False)


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Inside the context torch computes with one thread.

    With two, resizing an image takes three times the CPU time: the second waits in a loop for work that does not come.
    A thread that has one already sets nothing: torch would start every later thread of the process with that number.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
